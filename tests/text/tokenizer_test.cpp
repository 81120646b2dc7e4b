#include "src/text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <thread>

#include "src/text/utf8_stream.h"
#include "tests/text/vocabularies.h"

namespace llm_dist::text {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> make(const TokenizerSpec& spec) {
  auto tokenizer = Tokenizer::create(spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

std::string error_of(const TokenizerSpec& spec) {
  const auto tokenizer = Tokenizer::create(spec);
  EXPECT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
  return tokenizer.status().message();
}

std::vector<std::pair<std::string, std::string>> digit_merges() {
  return {{"1", "2"}, {"12", "3"}, {"123", "4"}};
}

std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> result;
  const auto ids = tokenizer.encode(text);
  EXPECT_TRUE(ids.ok());
  for (const int32_t id : *ids) result.emplace_back(tokenizer.token_bytes(id));
  return result;
}

// The JSON strings of the reference file: quotes, backslashes and \uXXXX with surrogate pairs.
std::string from_json_string(std::string_view quoted) {
  std::string text;
  uint32_t high = 0;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    if (quoted[i] != '\\') {
      text += quoted[i];
      continue;
    }
    const char kind = quoted[++i];
    if (kind != 'u') {
      const size_t at = std::string_view("ntrbf").find(kind);
      text += at == std::string_view::npos ? kind : "\n\t\r\b\f"[at];
      continue;
    }
    const auto code = static_cast<uint32_t>(std::stoul(std::string(quoted.substr(i + 1, 4)), nullptr, 16));
    i += 4;
    if (code >= 0xD800 && code < 0xDC00) {
      high = code;
    } else if (code >= 0xDC00 && code < 0xE000) {
      const uint32_t full = 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00);
      text += static_cast<char>(0xF0 | (full >> 18));
      for (const int shift : {12, 6, 0}) text += static_cast<char>(0x80 | ((full >> shift) & 63));
    } else {
      text += utf8(code);
    }
  }
  return text;
}

TEST(Tokenizer, Smollm2MatchesReferenceAndRoundTrips) {
  const auto spec = smollm2_vocabulary();
  if (!spec) GTEST_SKIP() << "needs .models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const auto tokenizer = make(*spec);
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  std::ifstream reference(LLM_DIST_SOURCE_DIR "/tests/text/data/smollm2_encodings.tsv");
  std::string line;
  int num_lines = 0;
  for (; std::getline(reference, line); ++num_lines) {
    const size_t tab = line.find('\t');
    const std::string text = from_json_string(std::string_view(line).substr(0, tab));
    std::istringstream numbers(line.substr(tab + 1));
    const Ids expected((std::istream_iterator<int32_t>(numbers)), std::istream_iterator<int32_t>());
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    EXPECT_EQ(*ids, expected) << line;
    EXPECT_EQ(tokenizer->decode(*ids, false), text);
  }
  EXPECT_GE(num_lines, 20);
}

TEST(Tokenizer, SpecialTokensAreParsedOrReadAsText) {
  const auto spec = smollm2_vocabulary();
  if (!spec) GTEST_SKIP() << "needs .models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const auto tokenizer = make(*spec);
  const auto end = tokenizer->token_to_id("<|im_end|>");
  ASSERT_EQ(end, 2);
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(300));
  const auto parsed = tokenizer->encode("a<|im_end|>");
  const auto plain = tokenizer->encode("a<|im_end|>", {.parse_special_tokens = false});
  ASSERT_TRUE(parsed.ok() && plain.ok());
  EXPECT_EQ(parsed->size(), 2u);
  EXPECT_EQ(parsed->back(), 2);
  EXPECT_EQ(std::count(plain->begin(), plain->end(), 2), 0);
  EXPECT_EQ(tokenizer->decode(*plain, true), "a<|im_end|>");
  EXPECT_EQ(tokenizer->decode(*parsed, true), "a");
}

TEST(Tokenizer, EachPreTokenizerSplitsDigitsItsOwnWay) {
  using Pieces = std::vector<std::string>;
  const auto split = [](const std::string& name) {
    return pieces(*make(byte_vocabulary(name, digit_merges())), "1234");
  };
  EXPECT_EQ(split("gpt-2"), (Pieces{"1234"}));
  EXPECT_EQ(split("smollm"), (Pieces{"1", "2", "3", "4"}));
  EXPECT_EQ(split("qwen2"), (Pieces{"1", "2", "3", "4"}));
  EXPECT_EQ(split("llama-bpe"), (Pieces{"123", "4"}));
  EXPECT_EQ(split("llama3"), (Pieces{"123", "4"}));
  EXPECT_EQ(split("default"), (Pieces{"123", "4"}));
}

TEST(Tokenizer, LlamaTakesAWholeWordWithoutItsMerges) {
  TokenizerSpec spec = byte_vocabulary("llama-bpe", {});
  spec.tokens.emplace_back("hello");
  spec.token_types.push_back(1);
  EXPECT_EQ(pieces(*make(spec), "hello"), (std::vector<std::string>{"hello"}));
  spec.pre_tokenizer = "gpt-2";
  EXPECT_EQ(pieces(*make(spec), "hello").size(), 5u);
}

TEST(Tokenizer, BosComesFirstWhenTheModelWantsIt) {
  TokenizerSpec spec = byte_vocabulary("gpt-2", {});
  EXPECT_EQ(*make(spec)->encode("a"), (Ids{'a'}));
  spec.add_bos = true;
  const auto tokenizer = make(spec);
  EXPECT_EQ(*tokenizer->encode("a"), (Ids{256, 'a'}));
  EXPECT_EQ(*tokenizer->encode(""), (Ids{256}));
  EXPECT_EQ(*tokenizer->encode("a", {.add_special_tokens = false}), (Ids{'a'}));
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{257}));
  spec.add_eos = true;
  EXPECT_EQ(*make(spec)->encode("a"), (Ids{256, 'a', 257}));
}

TEST(Tokenizer, UserDefinedTokensAreTextAndNotSpecial) {
  TokenizerSpec spec = byte_vocabulary("gpt-2", {});
  spec.tokens.emplace_back("<tool call>");
  spec.token_types.push_back(4);
  const auto tokenizer = make(spec);
  const auto ids = tokenizer->encode("x<tool call>y");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (Ids{'x', 258, 'y'}));
  EXPECT_EQ(tokenizer->decode(*ids, true), "x<tool call>y");
  EXPECT_FALSE(tokenizer->is_special(258));
}

TEST(Tokenizer, EqualSpellingsKeepTheirBytes) {
  TokenizerSpec spec = byte_vocabulary("gpt-2", {});
  spec.tokens.emplace_back("A");
  spec.token_types.push_back(1);
  const auto tokenizer = make(spec);
  EXPECT_EQ(tokenizer->token_bytes(258), "A");
  EXPECT_EQ(*tokenizer->encode("A"), (Ids{'A'}));
}

TEST(Tokenizer, TokenBytesAreRawBytes) {
  const auto tokenizer = make(byte_vocabulary("gpt-2", {}));
  for (int b = 0; b < 256; ++b) {
    ASSERT_EQ(tokenizer->token_bytes(b).size(), 1u);
    EXPECT_EQ(static_cast<unsigned char>(tokenizer->token_bytes(b)[0]), b);
  }
}

TEST(Tokenizer, SpellingsAreTheVocabularysOwn) {
  const TokenizerSpec gguf = byte_vocabulary("gpt-2", {{"h", "i"}});
  for (const TokenizerSpec& spec : {gguf, as_tokenizer_json(gguf)}) {
    const auto tokenizer = make(spec);
    for (size_t id = 0; id < gguf.tokens.size(); ++id)
      EXPECT_EQ(tokenizer->spelling(static_cast<int32_t>(id)), gguf.tokens[id]) << id;
    EXPECT_EQ(tokenizer->spelling(1 << 20), "");
  }
  const auto tokenizer = make(metaspace_vocabulary());
  const std::vector<std::pair<int32_t, std::string>> cases = {{1, "<s>"},
                                                              {3, "<0x00>"},
                                                              {3 + 0xE2, "<0xE2>"},
                                                              {259, "\u2581"},
                                                              {260, "a"},
                                                              {263, "\u00e9"},
                                                              {264, "\u2581a"}};
  for (const auto& [id, spelled] : cases) EXPECT_EQ(tokenizer->spelling(id), spelled) << id;
}

TEST(Tokenizer, PreTokenizersDifferInContractionsNewlinesAndComposition) {
  using Pieces = std::vector<std::string>;
  const auto split = [](const std::string& name, std::string_view text) {
    return pieces(*make(byte_vocabulary(name, {{"'", "S"}, {"!", "\u010A"}})), text);
  };
  EXPECT_EQ(split("llama-bpe", "x'S!\n"), (Pieces{"x", "'S", "!\n"}));
  EXPECT_EQ(split("qwen2", "x'S!\n"), (Pieces{"x", "'S", "!\n"}));
  EXPECT_EQ(split("gpt-2", "x'S!\n"), (Pieces{"x", "'", "S", "!", "\n"}));
  EXPECT_EQ(split("default", "x'S!\n"), (Pieces{"x", "'", "S", "!", "\n"}));
  EXPECT_EQ(split("qwen2", "e\u0301"), (Pieces{"\xC3", "\xA9"}));
  EXPECT_EQ(split("llama-bpe", "e\u0301").size(), 3u);
}

TEST(Tokenizer, JsonAndGgufOfOneVocabularyAgree) {
  const TokenizerSpec gguf = byte_vocabulary("gpt-2", {{"h", "e"}, {"\u0120", "he"}});
  const auto from_gguf = make(gguf);
  const auto from_json = make(as_tokenizer_json(gguf));
  ASSERT_TRUE(from_json->is_byte_level());
  ASSERT_EQ(from_json->vocab_size(), from_gguf->vocab_size());
  for (int32_t id = 0; id < from_gguf->vocab_size(); ++id) {
    EXPECT_EQ(from_json->token_bytes(id), from_gguf->token_bytes(id));
    EXPECT_EQ(from_json->is_special(id), from_gguf->is_special(id));
  }
  const std::string text = "he said: the \"caf\u00e9\"<|end|> he";
  EXPECT_EQ(*from_json->encode(text), *from_gguf->encode(text));
  EXPECT_EQ(from_json->decode(*from_json->encode(text), false), text);
}

TEST(Tokenizer, EachVocabularyOfGgufIsTheSameAsJson) {
  const std::string text = "x'S don't! 1234A  caf\u00e9 e\u0301\n\n<|end|> $5";
  for (const char* name : {"",
                           "default",
                           "gpt-2",
                           "gpt2",
                           "olmo",
                           "phi-2",
                           "smollm",
                           "dbrx",
                           "starcoder",
                           "refact",
                           "smaug-bpe",
                           "command-r",
                           "llama-bpe",
                           "llama3",
                           "llama-v3",
                           "qwen2",
                           "deepseek-r1-qwen"}) {
    for (const bool add_bos : {false, true}) {
      TokenizerSpec spec = byte_vocabulary(name, digit_merges());
      spec.add_bos = add_bos;
      spec.tokens.emplace_back("A");  // the first of two with one spelling is the one
      spec.token_types.push_back(1);
      spec.tokens.emplace_back("<tool call>");
      spec.token_types.push_back(4);
      const auto gguf = make(spec);
      const auto json_text = gguf->to_json();
      ASSERT_TRUE(json_text.ok()) << json_text.status().to_string();
      TokenizerSpec converted;
      converted.tokenizer_json = *json_text;
      const auto json = make(converted);
      EXPECT_EQ(*json->encode(text), *gguf->encode(text)) << name;
      EXPECT_EQ(json->decode(*json->encode(text), false), gguf->decode(*gguf->encode(text), false)) << name;
      for (const char* token : {"<|end|>", "<tool call>"}) {
        const int32_t id = gguf->token_to_id(token).value();
        EXPECT_EQ(json->token_to_id(token), id);
        EXPECT_EQ(json->is_special(id), gguf->is_special(id));
      }
    }
  }
}

TEST(Tokenizer, JsonWithByteFallback) {
  const auto tokenizer = make(metaspace_vocabulary());
  EXPECT_FALSE(tokenizer->is_byte_level());
  const auto ids = tokenizer->encode("a b\u20ac");
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(*ids, (Ids{1, 264, 259, 261, 3 + 0xE2, 3 + 0x82, 3 + 0xAC}));
  EXPECT_EQ(tokenizer->decode(*ids, true), "a b\u20ac");
  EXPECT_EQ(tokenizer->token_bytes(264), " a");
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xE2), "\xE2");
}

TokenizerSpec with_replaced(TokenizerSpec spec, const std::string& old, const std::string& now) {
  const size_t at = spec.tokenizer_json.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  spec.tokenizer_json.replace(at, old.size(), now);
  return spec;
}

// Llama 2's vocabulary under post-processors that put a BOS first, nothing and nothing.
std::vector<TokenizerSpec> with_each_post_processor() {
  TokenizerSpec puts_bos = metaspace_vocabulary();
  puts_bos.bos_token = "<s>";
  puts_bos.eos_token = "</s>";
  const std::string& json = puts_bos.tokenizer_json;
  const size_t begin = json.find(R"({"type":"TemplateProcessing")");
  const std::string own = json.substr(begin, json.find(R"(,"decoder")") - begin);
  return {
      puts_bos,
      with_replaced(puts_bos, own, "null"),
      with_replaced(puts_bos, own, R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false})")};
}

TEST(Tokenizer, FlagsReplaceThePostProcessor) {
  struct Case {
    bool add_bos;
    bool add_eos;
    Ids ids;
  };
  // What transformers 4.57 makes of the same files with LlamaTokenizerFast.
  const Case cases[] = {
      {true, false, {1, 264}}, {false, false, {264}}, {true, true, {1, 264, 2}}, {false, true, {264, 2}}};
  for (TokenizerSpec spec : with_each_post_processor()) {
    spec.replace_post_processor = true;
    for (const Case& c : cases) {
      spec.add_bos = c.add_bos;
      spec.add_eos = c.add_eos;
      const auto tokenizer = make(spec);
      EXPECT_EQ(*tokenizer->encode("a"), c.ids);
      EXPECT_EQ(*tokenizer->encode("a", {.parse_special_tokens = false}), c.ids);
      EXPECT_EQ(*tokenizer->encode("a", {.add_special_tokens = false}), (Ids{264}));
      TokenizerSpec converted;
      converted.tokenizer_json = *tokenizer->to_json();
      EXPECT_EQ(*make(converted)->encode("a"), c.ids);
    }
  }
}

TEST(Tokenizer, FlagsAreNothingToAPostProcessorThatDecides) {
  const std::vector<TokenizerSpec> specs = with_each_post_processor();
  for (size_t i = 0; i < specs.size(); ++i) {
    for (const bool add_bos : {false, true}) {
      TokenizerSpec spec = specs[i];
      spec.add_bos = add_bos;
      EXPECT_EQ(*make(spec)->encode("a"), i == 0 ? (Ids{1, 264}) : (Ids{264})) << i;
    }
  }
}

TEST(Tokenizer, AFlagWithoutItsTokenLeavesThePostProcessor) {
  for (const char* lacking : {"", "<|begin_of_text|>", "\xFF"}) {
    TokenizerSpec spec = with_each_post_processor().front();
    spec.replace_post_processor = true;
    spec.add_bos = true;
    spec.add_eos = true;
    spec.bos_token = lacking;
    EXPECT_EQ(*make(spec)->encode("a"), (Ids{1, 264})) << lacking;
    spec.bos_token = "<s>";
    spec.eos_token = lacking;
    EXPECT_EQ(*make(spec)->encode("a"), (Ids{1, 264})) << lacking;
  }
}

TEST(Tokenizer, ATokenPutAroundATextMayBeSpelledLikeATemplate) {
  for (const std::string name : {"$A", "a:1", "$", "x:y:z", "with space"}) {
    TokenizerSpec spec = byte_vocabulary("gpt-2", {});
    spec.tokens[256] = name;
    spec.add_bos = true;
    EXPECT_EQ(*make(spec)->encode("b"), (Ids{256, 'b'})) << name;
  }
}

TEST(Tokenizer, HostileInputIsAnErrorOrIgnored) {
  const auto tokenizer = make(byte_vocabulary("llama-bpe", digit_merges()));
  const auto bad = tokenizer->encode("ok\xFF\xFE");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("byte 2"), std::string::npos) << bad.status().message();
  const Ids wild{-1, INT32_MIN, INT32_MAX, 'x', 1 << 20};
  EXPECT_EQ(tokenizer->decode(wild, false), "x");
  EXPECT_EQ(tokenizer->token_bytes(INT32_MAX), "");
  EXPECT_FALSE(tokenizer->is_special(INT32_MIN));
  EXPECT_EQ(tokenizer->token_to_id("\xFF"), std::nullopt);
  EXPECT_EQ(make(metaspace_vocabulary())->decode(wild, false), "u");  // id 120: byte 0x75
}

TEST(Tokenizer, InvalidBytesDecodeAsReplacement) {
  const auto tokenizer = make(byte_vocabulary("gpt-2", {}));
  // A lone continuation, a truncated 3-byte character, an overlong form, a surrogate.
  const Ids ids{0x80, 'a', 0xE2, 0x82, 'b', 0xC0, 0xAF, 0xED, 0xA0, 0x80, 0xF0, 0x9F};
  const std::string r = "\uFFFD";
  EXPECT_EQ(tokenizer->decode(ids, false), r + "a" + r + "b" + r + r + r + r + r + r);
}

TEST(Tokenizer, DamagedSpecsSayWhatIsWrong) {
  TokenizerSpec none;
  EXPECT_NE(error_of(none).find("--tokenizer"), std::string::npos);
  TokenizerSpec sentencepiece;
  sentencepiece.model = "llama";
  EXPECT_NE(error_of(sentencepiece).find("'llama'"), std::string::npos);
  const std::string unknown = error_of(byte_vocabulary("martian", {}));
  for (const char* known : {"martian", "smollm", "llama-bpe", "qwen2", "gpt-2", "default"}) {
    EXPECT_NE(unknown.find(known), std::string::npos) << unknown;
  }
  TokenizerSpec spec = byte_vocabulary("gpt-2", {});
  spec.merges = {"zz yy"};
  EXPECT_NE(error_of(spec).find("'zz'"), std::string::npos);
  spec.merges = {"nospace"};
  EXPECT_NE(error_of(spec).find("nospace"), std::string::npos);
  spec.merges = {" "};
  EXPECT_NE(error_of(spec).find("merge 0"), std::string::npos);
  spec = byte_vocabulary("gpt-2", {});
  spec.token_types.pop_back();
  EXPECT_NE(error_of(spec).find("token types"), std::string::npos);
  spec = byte_vocabulary("gpt-2", {});
  spec.tokens[7] = "\xFF";
  EXPECT_NE(error_of(spec).find("token 7"), std::string::npos);
  spec = byte_vocabulary("gpt-2", {});
  spec.add_bos = true;
  spec.bos_id = 100000;
  EXPECT_NE(error_of(spec).find("BOS id 100000"), std::string::npos);
  spec = byte_vocabulary("gpt-2", {});
  spec.add_eos = true;
  spec.eos_ids = {100000};
  EXPECT_NE(error_of(spec).find("EOS id 100000"), std::string::npos);
}

TEST(Tokenizer, BrokenJsonNeverCrashes) {
  const std::string good = metaspace_vocabulary().tokenizer_json;
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    TokenizerSpec spec;
    spec.tokenizer_json = good;
    if (round % 2 == 0) {
      spec.tokenizer_json.resize(random() % good.size() + 1);
    } else {
      for (int i = 0; i < 3; ++i) spec.tokenizer_json[random() % good.size()] = static_cast<char>(random());
    }
    const auto tokenizer = Tokenizer::create(spec);
    if (!tokenizer.ok()) {
      EXPECT_FALSE(tokenizer.status().message().empty());
      continue;
    }
    const auto ids = (*tokenizer)->encode("a b \u20ac c");
    if (!ids.ok()) continue;
    EXPECT_TRUE(is_valid_utf8((*tokenizer)->decode(*ids, true)));
  }
}

TEST(Tokenizer, HugeIdsInJsonAreRefused) {
  TokenizerSpec spec = metaspace_vocabulary();
  const size_t at = spec.tokenizer_json.find(":264");
  spec.tokenizer_json.replace(at, 4, ":4000000000");
  EXPECT_NE(error_of(spec).find("4000000000"), std::string::npos);
}

const std::string kAs(1000, 'a');

TEST(Tokenizer, TheLongestTokenBoundsTheirNumber) {
  // "<|end|>" covers seven bytes, in a text that is nothing else.
  const auto tokenizer = make(byte_vocabulary("gpt-2", {}));
  EXPECT_EQ(tokenizer->fewest_tokens(""), 0);
  EXPECT_EQ(tokenizer->fewest_tokens(kAs.substr(0, 7)), 1);
  EXPECT_EQ(tokenizer->fewest_tokens(kAs.substr(0, 8)), 2);
  EXPECT_EQ(tokenizer->encode("<|end|><|end|>")->size(), 2u);
  EXPECT_EQ(make(as_tokenizer_json(byte_vocabulary("gpt-2", {})))->fewest_tokens(kAs.substr(0, 8)), 2);
  // A byte token's spelling, for all this vocabulary's own tokens are shorter.
  EXPECT_EQ(make(metaspace_vocabulary())->fewest_tokens(kAs.substr(0, 7)), 2);
}

TEST(Tokenizer, NoTextHasFewerTokensThanItsBytesAllow) {
  std::vector<TokenizerSpec> specs{byte_vocabulary("gpt-2", digit_merges()),
                                   byte_vocabulary("qwen2", {{"\u00c3", "\u00a9"}}),
                                   metaspace_vocabulary()};
  if (const auto smollm2 = smollm2_vocabulary()) specs.push_back(*smollm2);
  // What composition makes shortest, what a token covers most of, what a normalizer replaces.
  const char* repeated[] = {"\u1fbe\u0308\u0301",
                            "\u212a",
                            "e\u0301",
                            "1234",
                            "\u2581",
                            " a",
                            "<|end|>",
                            "</s>",
                            "        ",
                            "\u1112\u1161\u11ab"};
  for (const TokenizerSpec& spec : specs) {
    const auto tokenizer = make(spec);
    for (const char* piece : repeated) {
      std::string text;
      for (int i = 0; i < 200; ++i) text += piece;
      const auto ids = tokenizer->encode(text, {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok());
      EXPECT_GE(static_cast<int64_t>(ids->size()), tokenizer->fewest_tokens(text)) << piece;
    }
  }
}

TEST(Tokenizer, BytesWithoutATokenCountForNothing) {
  TokenizerSpec lacking = byte_vocabulary("gpt-2", {});
  lacking.tokens['x'] = "xx";
  const auto tokenizer = make(lacking);
  EXPECT_EQ(tokenizer->encode("xxax")->size(), 1u);
  EXPECT_EQ(tokenizer->fewest_tokens(std::string(1000, 'x') + "a"), 1);
  EXPECT_EQ(tokenizer->fewest_tokens(std::string(1000, 'x') + "aaaaaaaa"), 2);
  // What composition makes of other bytes may be such a one.
  lacking.pre_tokenizer = "qwen2";
  EXPECT_EQ(make(lacking)->fewest_tokens(kAs), 0);
  if (const auto smollm2 = smollm2_vocabulary()) {
    EXPECT_GT(make(*smollm2)->fewest_tokens(std::string(1'000'000, 'a')), 10'000);
  }
}

TEST(Tokenizer, WhatDropsTextHasNoBound) {
  const TokenizerSpec json = as_tokenizer_json(byte_vocabulary("gpt-2", {}));
  const std::string byte_level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  const auto pre_tokenized = [&](const std::string& first) {
    return make(with_replaced(
        json, byte_level, R"({"type":"Sequence","pretokenizers":[)" + first + "," + byte_level + "]}"));
  };
  EXPECT_GT(pre_tokenized(R"({"type":"Digits","individual_digits":true})")->fewest_tokens(kAs), 0);
  EXPECT_EQ(pre_tokenized(R"({"type":"WhitespaceSplit"})")->fewest_tokens(kAs), 0);
  EXPECT_EQ(pre_tokenized(R"({"type":"Split","pattern":{"String":" "},"behavior":"Removed","invert":false})")
                ->fewest_tokens(kAs),
            0);
  const auto normalized = [&](const std::string& normalizer) {
    return make(with_replaced(json, R"("normalizer":null)", R"("normalizer":)" + normalizer));
  };
  EXPECT_GT(normalized(R"({"type":"NFC"})")->fewest_tokens(kAs), 0);
  EXPECT_EQ(normalized(R"({"type":"Strip","strip_left":true,"strip_right":true})")->fewest_tokens(kAs), 0);
  EXPECT_EQ(normalized(R"({"type":"Replace","pattern":{"String":"  "},"content":" "})")->fewest_tokens(kAs),
            0);
  // White space beside the token goes with it.
  EXPECT_EQ(make(with_replaced(json, R"("rstrip":false)", R"("rstrip":true)"))->fewest_tokens(kAs), 0);
  EXPECT_EQ(make(with_replaced(metaspace_vocabulary(), R"("byte_fallback":true)", R"("byte_fallback":false)"))
                ->fewest_tokens(kAs),
            0);
}

TEST(Tokenizer, ManyThreadsAgree) {
  const auto tokenizer = make(byte_vocabulary("llama-bpe", digit_merges()));
  const std::string text = "12 1234 <|end|> h\u00e9llo";
  const Ids expected = *tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> agreed(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto ids = tokenizer->encode(text, {.parse_special_tokens = i % 2 == 0});
        if (ids.ok() && (i % 2 != 0 || *ids == expected) && tokenizer->decode(*ids, false) == text)
          ++agreed[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(agreed, (std::vector<int>(4, 100)));
}

}  // namespace
}  // namespace llm_dist::text
