#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <fstream>
#include <system_error>

namespace llm_dist::fuzz {

std::vector<std::string_view> pieces_of(std::string_view input, size_t count) {
  constexpr std::string_view kCut = "\n====\n";
  std::vector<std::string_view> pieces(count);
  for (size_t i = 0; i < count; ++i) {
    size_t at = i + 1 < count ? input.find(kCut) : input.npos;
    pieces[i] = input.substr(0, at);
    input.remove_prefix(at == input.npos ? input.size() : at + kCut.size());
  }
  return pieces;
}

// RFC 3629, 4: no overlong form, no surrogate, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    unsigned first = byte(i);
    size_t length = first < 0x80   ? 1
                    : first < 0xC2 ? 0
                    : first < 0xE0 ? 2
                    : first < 0xF0 ? 3
                    : first < 0xF5 ? 4
                                   : 0;
    if (length == 0) return false;
    for (size_t k = 1; k < length; ++k)
      if ((byte(i + k) & 0xC0) != 0x80) return false;
    unsigned second = byte(i + 1);
    bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
               (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90);
    if (bad) return false;
    i += length;
  }
  return true;
}

void expect_message(const Status& status) {
  CHECK(!status.ok());
  CHECK(!status.message().empty(), "{} without a word", to_string(status.code()));
  CHECK(status.code() != StatusCode::kInternal, "{}", status.message());
}

ScratchFolder::ScratchFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "llm-dist-fuzz-XXXXXX").string();
  CHECK(::mkdtemp(pattern.data()) != nullptr, "{}", pattern);
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void ScratchFolder::write(std::string_view name, std::string_view text) const {
  std::ofstream file(path_of(name), std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  CHECK(file.good(), "{}", path_of(name));
}

void ScratchFolder::write_or_remove(std::string_view name, std::string_view text) const {
  if (!text.empty()) return write(name, text);
  std::error_code ignored;
  std::filesystem::remove(path_of(name), ignored);
}

}  // namespace llm_dist::fuzz
