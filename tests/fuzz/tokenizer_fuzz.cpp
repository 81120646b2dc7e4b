// A directory's tokenizer files, cut by lines "====": tokenizer.json, tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja. What is accepted encodes to ids of its vocabulary and decodes
// to text.
#include "src/checkpoint/hf_tokenizer.h"
#include "src/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

constexpr std::string_view kTexts[] = {
    "", "Hello, world!", "a<|im_end|>\n<s>\u2581\U0001F600 \xC3\xA9", "aaaa  bb"};

void expect_ids(const text::Tokenizer& tokenizer, std::string_view text, bool parse_special) {
  auto ids = tokenizer.encode(text, {.add_special_tokens = false, .parse_special_tokens = parse_special});
  if (!ids.ok()) {
    CHECK(!ids.status().message().empty());
    return;
  }
  for (int32_t id : *ids)
    CHECK(id >= 0 && id < tokenizer.vocab_size(), "{} of {}", id, tokenizer.vocab_size());
  CHECK(is_utf8(tokenizer.decode(*ids, parse_special)));
}

void use(const text::Tokenizer& tokenizer) {
  CHECK(tokenizer.vocab_size() > 0);
  auto json = tokenizer.to_json();
  CHECK(json.ok() && is_utf8(*json));
  for (int32_t id : {-1, 0, 1, tokenizer.vocab_size() - 1, tokenizer.vocab_size()}) {
    std::string spelling = tokenizer.spelling(id);
    CHECK(id >= 0 && id < tokenizer.vocab_size() ? true : spelling.empty(), "{}", id);
  }
  for (std::string_view text : kTexts) {
    expect_ids(tokenizer, text, true);
    expect_ids(tokenizer, text, false);
  }
  CHECK(!tokenizer.encode("\xED\xA0\x80").ok());  // a lone surrogate is no text
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  static const fuzz::ScratchFolder folder;
  auto pieces = fuzz::pieces_of(fuzz::text_of(data, size), 4);
  folder.write_or_remove("tokenizer.json", pieces[0]);
  folder.write_or_remove("tokenizer_config.json", pieces[1]);
  folder.write_or_remove("special_tokens_map.json", pieces[2]);
  folder.write_or_remove("chat_template.jinja", pieces[3]);
  auto spec = checkpoint::read_hf_tokenizer(folder.path());
  if (!spec.ok()) {
    fuzz::expect_message(spec.status());
    return 0;
  }
  CHECK(spec->tokenizer_json == pieces[0]);
  for (int32_t id : spec->eos_ids) CHECK(id >= 0);
  // What the crate cannot build is refused, whatever it stumbled over.
  auto tokenizer = text::Tokenizer::create(*spec);
  if (tokenizer.ok()) {
    fuzz::use(**tokenizer);
  } else {
    CHECK(!tokenizer.status().message().empty());
  }
  return 0;
}
