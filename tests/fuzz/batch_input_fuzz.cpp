// A batch's input file: its lines read the same again, what a line asks for is whole, and the whole file is
// accepted only with every line of it.
#include <nlohmann/json.hpp>

#include "cluster/batch_input.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

constexpr const char* kEndpoint = "/v1/chat/completions";

bool is_request(const std::string& line) {
  auto request = cluster::parse_batch_line(line, kEndpoint);
  if (!request.ok()) {
    expect_message(request.status());
    return false;
  }
  CHECK(!request->model.empty() && !request->custom_id.empty() && request->custom_id.size() <= 512);
  auto body = nlohmann::json::parse(request->body, nullptr, false);
  CHECK(body.is_object() && body["model"] == request->model, "{}", request->body);
  return true;
}

struct Lines {
  int64_t count = 0;
  bool all_requests = true;
};

// Each line as it comes, and from its place.
Lines read_lines(const std::string& path) {
  auto input = cluster::BatchInput::open(path);
  auto again = cluster::BatchInput::open(path);
  CHECK(input.ok() && again.ok());
  Lines lines;
  while (true) {
    auto place = input->next();
    if (!place.ok()) {
      expect_message(place.status());
      lines.all_requests = false;
      return lines;
    }
    if (!*place) return lines;
    CHECK_LE(input->line().size(), cluster::kMaxLineBytes);
    auto line = again->read(**place);
    CHECK(line.ok() && *line == input->line(), "line {}", (*place)->number);
    ++lines.count;
    lines.all_requests &= is_request(*line);
  }
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  static const fuzz::ScratchFolder folder;
  folder.write("input.jsonl", fuzz::text_of(data, size));
  fuzz::Lines lines = fuzz::read_lines(folder.path_of("input.jsonl"));
  auto summary = cluster::check_batch_input(folder.path_of("input.jsonl"), fuzz::kEndpoint);
  if (!summary.ok()) {
    fuzz::expect_message(summary.status());
    return 0;
  }
  CHECK(lines.all_requests && lines.count == summary->num_items && !summary->model.empty());
  return 0;
}
