// Detokenizer: token ids in, text out, one id at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/text/tokenizer.h"
#include "src/text/utf8_stream.h"

namespace llm_dist::text {

// Holds one sequence's state; costs O(1) an id, however long the output. For a byte-level tokenizer the
// pushes and flush() together are exactly Tokenizer::decode() of all ids. For the others a token's text
// depends on its neighbours: a short window is decoded with and without the new id, and what is new is
// emitted. That is decode() of all ids where their bytes are well-formed; elsewhere only what is broken
// becomes U+FFFD, not the characters beside it.
class Detokenizer {
 public:
  // `tokenizer` outlives this object.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // Ids that are context only: a prompt's last ids, so that the first generated word keeps its leading space.
  void set_context(std::span<const int32_t> ids);
  // The text that became complete with `id`: valid UTF-8, often empty.
  std::string push(int32_t id);
  // What is left when the sequence ends: incomplete bytes as U+FFFD.
  std::string flush();

 private:
  std::string push_windowed(int32_t id);
  void add_to_window(int32_t id);
  // Half a character in stream_ will never be whole.
  void end_character();
  void add_byte_tokens(std::string_view characters);
  std::string take_pending(const std::string& window_text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  Utf8Stream stream_;            // byte-level: all; the others: byte tokens that are no character yet
  std::vector<int32_t> window_;  // the others: [emitted ids kept as context | ids not emitted yet]
  size_t num_emitted_ = 0;       // of window_
  std::string emitted_text_;     // decode(window_[0, num_emitted_))
};

}  // namespace llm_dist::text
