#include "src/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/base/format.h"
#include "src/text/ffi_glue.h"
#include "src/text/utf8_stream.h"

namespace llm_dist::text {
namespace {

std::vector<llm_dist_ffi_bytes> views_of(const std::vector<std::string>& texts) {
  std::vector<llm_dist_ffi_bytes> views(texts.size());
  std::transform(
      texts.begin(), texts.end(), views.begin(), [](const std::string& t) { return ffi_bytes(t); });
  return views;
}

Result<llm_dist_tokenizer*> from_json(const TokenizerSpec& spec) {
  llm_dist_tokenizer* raw = nullptr;
  std::string error;
  const ForeignCall foreign;
  const llm_dist_ffi_special_flags flags{.add_bos = spec.add_bos,
                                         .add_eos = spec.add_eos,
                                         .bos_token = ffi_bytes(spec.bos_token),
                                         .eos_token = ffi_bytes(spec.eos_token)};
  const int32_t code = llm_dist_tokenizer_from_json(
      ffi_bytes(spec.tokenizer_json), spec.replace_post_processor ? &flags : nullptr, &raw, append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  return raw;
}

Result<llm_dist_tokenizer*> from_bpe(const TokenizerSpec& spec) {
  const std::vector<llm_dist_ffi_bytes> tokens = views_of(spec.tokens);
  const std::vector<llm_dist_ffi_bytes> merges = views_of(spec.merges);
  const bool has_bos = spec.add_bos && spec.bos_id;
  const bool has_eos = spec.add_eos && !spec.eos_ids.empty();
  const llm_dist_ffi_bpe_spec bpe{.tokens = tokens.data(),
                                  .num_tokens = tokens.size(),
                                  .types = spec.token_types.data(),
                                  .num_types = spec.token_types.size(),
                                  .merges = merges.data(),
                                  .num_merges = merges.size(),
                                  .pre_tokenizer = ffi_bytes(spec.pre_tokenizer),
                                  .bos_id = has_bos ? *spec.bos_id : -1,
                                  .eos_id = has_eos ? spec.eos_ids.front() : -1};
  llm_dist_tokenizer* raw = nullptr;
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_tokenizer_from_bpe(&bpe, &raw, append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  return raw;
}

Result<llm_dist_tokenizer*> make_handle(const TokenizerSpec& spec) {
  if (!spec.tokenizer_json.empty()) return from_json(spec);
  if (spec.model == "gpt2") return from_bpe(spec);
  if (spec.model.empty()) {
    return invalid_argument(
        "the model has no tokenizer: give the path of its tokenizer.json with --tokenizer");
  }
  return invalid_argument(
      format("tokenizer model '{}' of the GGUF file is not supported (only 'gpt2', byte-level BPE): give the "
             "path of "
             "the model's tokenizer.json with --tokenizer",
             spec.model));
}

constexpr std::string_view kUnderline = "\u2581";  // SentencePiece's space

bool is_gpt2_printable(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// GPT-2's byte alphabet (Radford et al. 2019, encoder.py): printable bytes of Latin-1 stand for themselves,
// the others for the characters from U+0100 on, in order.
void append_gpt2_character(std::string& out, unsigned char byte) {
  unsigned code = byte;
  if (!is_gpt2_printable(byte)) {
    code = 256;
    for (unsigned below = 0; below < byte; ++below) code += is_gpt2_printable(below) ? 0 : 1;
  }
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 63));
  }
}

std::string fallback_spelling(unsigned char byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
}

}  // namespace

void Tokenizer::HandleFree::operator()(llm_dist_tokenizer* handle) const {
  const ForeignCall foreign;
  llm_dist_tokenizer_free(handle);
}

Tokenizer::Tokenizer(Handle handle)
    : handle_(std::move(handle)), byte_level_(llm_dist_tokenizer_is_byte_level(handle_.get())) {}

Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(llm_dist_tokenizer * raw, make_handle(spec));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(Handle(raw)));
  RETURN_IF_ERROR(tokenizer->read_vocabulary());
  tokenizer->eos_ids_ = spec.eos_ids;
  tokenizer->bos_id_ = spec.bos_id;
  return tokenizer;
}

Status Tokenizer::read_vocabulary() {
  const uint32_t size = llm_dist_tokenizer_vocab_size(handle_.get());
  special_.resize(size);
  offsets_.reserve(size + 1);
  offsets_.push_back(0);
  const auto each = [](void* context, uint32_t id, const uint8_t* data, size_t length, bool special) {
    auto& self = *static_cast<Tokenizer*>(context);
    self.offsets_.resize(id + 1,
                         static_cast<uint32_t>(self.bytes_.size()));  // ids without a token in between
    self.bytes_.append(reinterpret_cast<const char*>(data), length);
    self.special_[id] = special;
    self.offsets_.push_back(static_cast<uint32_t>(self.bytes_.size()));
  };
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_tokenizer_visit(handle_.get(), this, each, append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  if (bytes_.size() > std::numeric_limits<uint32_t>::max()) {
    return invalid_argument("the tokenizer's vocabulary holds more than 4 GB of text: the file is damaged");
  }
  offsets_.resize(size + 1, static_cast<uint32_t>(bytes_.size()));
  if (!byte_level_) find_byte_tokens();
  return ok_status();
}

// A spelling is UTF-8: no other token is one such byte.
void Tokenizer::find_byte_tokens() {
  std::vector<int32_t> found(128, -1);
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string_view bytes = token_bytes(id);
    const auto first = static_cast<unsigned char>(bytes.empty() ? 0 : bytes[0]);
    if (bytes.size() == 1 && first >= 0x80) found[first - 0x80] = id;
  }
  if (std::find(found.begin(), found.end(), -1) == found.end()) byte_tokens_ = std::move(found);
}

Result<std::string> Tokenizer::to_json() const {
  std::string json;
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_tokenizer_to_json(handle_.get(), append_to(json), append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  return json;
}

int64_t Tokenizer::fewest_tokens(std::string_view utf8) const {
  const ForeignCall foreign;
  return static_cast<int64_t>(llm_dist_tokenizer_fewest_tokens(handle_.get(), ffi_bytes(utf8)));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  const llm_dist_ffi_id_sink sink{.context = &ids,
                                  .write = [](void* context, const uint32_t* data, size_t count) {
                                    static_cast<std::vector<int32_t>*>(context)->assign(data, data + count);
                                  }};
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_tokenizer_encode(handle_.get(),
                                                 ffi_bytes(utf8),
                                                 options.add_special_tokens,
                                                 options.parse_special_tokens,
                                                 sink,
                                                 append_to(error));
  RETURN_IF_ERROR(ffi_status(code, std::move(error)));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  if (byte_level_) {
    Utf8Stream stream;
    std::string text;
    for (const int32_t id : ids) {
      if (!skip_special_tokens || !is_special(id)) stream.push(token_bytes(id), text);
    }
    stream.flush(text);
    return text;
  }
  std::vector<uint32_t> known;
  known.reserve(ids.size());
  for (const int32_t id : ids) {
    if (has(id)) known.push_back(static_cast<uint32_t>(id));
  }
  std::string text;
  std::string error;
  const ForeignCall foreign;
  const int32_t code = llm_dist_tokenizer_decode(
      handle_.get(), known.data(), known.size(), skip_special_tokens, append_to(text), append_to(error));
  // Unknown ids are gone, so only a decoder that contradicts its own vocabulary can fail; its spelling still
  // stands.
  if (code == LLM_DIST_FFI_OK) return text;
  text.clear();
  for (const uint32_t id : known) text += token_bytes(static_cast<int32_t>(id));
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!has(id)) return {};
  const uint32_t start = offsets_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(start, offsets_[static_cast<size_t>(id) + 1] - start);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const ForeignCall foreign;
  const int64_t id = llm_dist_tokenizer_token_to_id(handle_.get(), ffi_bytes(token));
  if (id < 0) return std::nullopt;
  return static_cast<int32_t>(id);
}

// The foreign side keeps no spellings: what could be one is asked for.
std::string Tokenizer::spelling(int32_t id) const {
  std::string_view bytes = token_bytes(id);
  if (byte_level_) {
    std::string in_alphabet;
    for (const char c : bytes) append_gpt2_character(in_alphabet, static_cast<unsigned char>(c));
    if (token_to_id(in_alphabet)) return in_alphabet;
    return std::string(bytes);
  }
  std::string underlined;
  for (const char c : bytes) underlined += c == ' ' ? std::string(kUnderline) : std::string(1, c);
  std::string fallback = bytes.size() == 1 ? fallback_spelling(static_cast<unsigned char>(bytes[0])) : "";
  for (const std::string& candidate : {std::string(bytes), underlined, fallback})
    if (token_to_id(candidate) == id) return candidate;
  return std::string(bytes);
}

}  // namespace llm_dist::text
