// Tokenizer: text to token ids and back. Built from a Hugging Face tokenizer.json or from the byte-level BPE
// vocabulary of a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/base/tokenizer_spec.h"

struct llm_dist_tokenizer;

namespace llm_dist::text {

struct EncodeOptions {
  bool add_special_tokens = true;    // what the model puts around a prompt, usually BOS in front
  bool parse_special_tokens = true;  // false: "<|im_end|>" in the text is plain text, not the control token
};

// Immutable after create(); every method may run on several threads at once.
class Tokenizer {
 public:
  // kInvalidArgument: a damaged or unknown vocabulary, with what to do about it.
  static Result<std::unique_ptr<Tokenizer>> create(const TokenizerSpec& spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // A tokenizer.json of which the same is made: the same ids of every text, and the same text of ids, but
  // that of ids with one spelling it holds the first.
  Result<std::string> to_json() const;

  // kInvalidArgument when `utf8` is not UTF-8.
  Result<std::vector<int32_t>> encode(std::string_view utf8, const EncodeOptions& options = {}) const;

  // encode() makes at least so many tokens of it. Found from the longest token, in a few ms for megabytes
  // that take a minute to encode; 0 where the vocabulary or its normalizer sets no bound.
  int64_t fewest_tokens(std::string_view utf8) const;

  // Valid UTF-8: bytes that form no character become U+FFFD. Ids without a token count for nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The bytes that `id` stands for, not always whole characters; empty for an id without a token. Where
  // is_byte_level() is false, what stands around a token can change its text (a leading space, for example).
  std::string_view token_bytes(int32_t id) const;

  // Largest id + 1. The model's logits may be wider (padding).
  int32_t vocab_size() const { return static_cast<int32_t>(special_.size()); }
  // By the vocabulary's spelling ("Ġhello", "<|im_end|>").
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The reverse. What no vocabulary spells (bytes that are no text) comes as its bytes.
  std::string spelling(int32_t id) const;
  // Control tokens: BOS, EOS, the chat markers.
  bool is_special(int32_t id) const { return has(id) && special_[static_cast<size_t>(id)]; }
  // Whether decoding is concatenating token_bytes().
  bool is_byte_level() const { return byte_level_; }
  // Where is_byte_level() is false: a token for each byte from 0x80 on ("<0xE2>"), of which characters that
  // the vocabulary lacks are made. Index = byte - 0x80; empty when there are none.
  std::span<const int32_t> byte_tokens() const { return byte_tokens_; }
  // Ends of generation, as the model's files name them.
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  std::optional<int32_t> bos_id() const { return bos_id_; }

 private:
  struct HandleFree {
    void operator()(llm_dist_tokenizer* handle) const;
  };
  using Handle = std::unique_ptr<llm_dist_tokenizer, HandleFree>;

  explicit Tokenizer(Handle handle);
  bool has(int32_t id) const { return id >= 0 && id < vocab_size(); }
  Status read_vocabulary();
  void find_byte_tokens();

  Handle handle_;
  bool byte_level_ = false;
  std::string bytes_;              // every token's bytes, one after the other
  std::vector<uint32_t> offsets_;  // [vocab_size + 1] into bytes_
  std::vector<bool> special_;      // [vocab_size]
  std::vector<int32_t> byte_tokens_;
  std::vector<int32_t> eos_ids_;
  std::optional<int32_t> bos_id_;
};

}  // namespace llm_dist::text
