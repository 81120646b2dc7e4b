// How much text a request may bring, by the model's context: what is refused here is not read first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace llm_dist::server {

// Several contexts' worth, and of a model with a short context as much as of one with 65,536 tokens.
int64_t most_counted_tokens(int64_t max_model_len);
// Usual text of so many.
int64_t most_text_bytes(int64_t max_model_len);

// What to answer to a conversation, with the arguments of its template, of so many bytes of JSON; nothing
// where it may be rendered. A template may split a text, at 24 bytes and more for each byte of it.
std::optional<std::string> beyond_rendering(int64_t max_model_len, size_t json_bytes);

}  // namespace llm_dist::server
