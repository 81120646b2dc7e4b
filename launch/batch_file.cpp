#include "launch/batch_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/log.h"

namespace llm_dist::launch {
namespace {

Status system_error(const std::string& what) {
  bool full = errno == ENOSPC || errno == EDQUOT;
  std::string message = format("{}: {}", what, std::strerror(errno));
  return full ? resource_exhausted(std::move(message)) : failed_precondition(std::move(message));
}

bool is_answer(const nlohmann::json& line) {
  return line.is_object() && line.contains("index") && line["index"].is_number_unsigned();
}

// Whether a text without a newline is an answer that was being written: whole, or its beginning.
bool begins_an_answer(const std::string& text) {
  constexpr std::string_view kBeginning = "{\"";
  const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_discarded()) return is_answer(line);
  return text.substr(0, kBeginning.size()) == kBeginning.substr(0, text.size());
}

}  // namespace

Result<BatchInput> BatchInput::open(const std::string& path) {
  BatchInput input;
  input.file_.open(path);
  if (!input.file_) return not_found(format("--input-file {} cannot be read", path));
  return input;
}

std::optional<BatchLine> BatchInput::next() {
  std::string text;
  while (std::getline(file_, text)) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    return BatchLine{.index = next_index_++, .text = std::move(text)};
  }
  return std::nullopt;
}

Result<BatchOutput> BatchOutput::open(const std::string& path) {
  BatchOutput output;
  output.file_ = comm::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0644));
  if (!output.file_.valid()) return system_error(format("--output-file {}", path));
  struct stat info{};
  if (::fstat(output.file_.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return invalid_argument(format(
        "--output-file {} is no file that can be read again, as is done to go on where a run ended", path));
  if (::flock(output.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return failed_precondition(format("--output-file {} is being written by another process", path));
  RETURN_IF_ERROR(output.read_answers(path));
  return output;
}

Status BatchOutput::read_answers(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  off_t whole = 0;
  auto something_else = [&] {
    return failed_precondition(format(
        "--output-file {} holds something else than answers, at byte {}: name another file", path, whole));
  };
  while (std::getline(file, line)) {
    if (file.eof()) {
      if (!begins_an_answer(line)) return something_else();
      break;
    }
    const auto answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!is_answer(answer)) return something_else();
    answered_.insert(answer["index"].get<size_t>());
    whole += static_cast<off_t>(line.size()) + 1;
  }
  if (::ftruncate(file_.get(), whole) != 0) return system_error(format("--output-file {}", path));
  return ok_status();
}

Status BatchOutput::append(std::string line) {
  line += '\n';
  for (size_t sent = 0; sent < line.size();) {
    ssize_t n = ::write(file_.get(), line.data() + sent, line.size() - sent);
    if (n < 0 && errno != EINTR) return system_error("writing --output-file");
    if (n > 0) sent += static_cast<size_t>(n);
  }
  return ok_status();
}

Status BatchOutput::sync() {
  if (::fdatasync(file_.get()) != 0 && errno != EINVAL) return system_error("writing --output-file");
  return ok_status();
}

}  // namespace llm_dist::launch
