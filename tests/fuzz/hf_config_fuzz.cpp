// config.json, and behind a line "====" generation_config.json: what is accepted is valid and reads back when
// written.
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/model_config.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

checkpoint::HfConfigTexts write(const checkpoint::ModelConfig& config) {
  auto texts = checkpoint::write_hf_config(config);
  CHECK(texts.ok(), "{}", texts.status().to_string());
  return *texts;
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  static const fuzz::ScratchFolder folder;
  auto pieces = fuzz::pieces_of(fuzz::text_of(data, size), 2);
  folder.write("config.json", pieces[0]);
  folder.write_or_remove("generation_config.json", pieces[1]);
  auto read = checkpoint::read_hf_config(folder.path());
  if (!read.ok()) {
    fuzz::expect_message(read.status());
    return 0;
  }
  CHECK(checkpoint::validate(read->config, "").ok());
  auto frequencies = checkpoint::rope_inverse_frequencies(read->config.rope, read->config.head_dim);
  CHECK_EQ(static_cast<int64_t>(frequencies.size()), read->config.head_dim / 2);
  auto texts = fuzz::write(read->config);
  folder.write("config.json", texts.config_json);
  folder.write("generation_config.json", texts.generation_config_json);
  auto again = checkpoint::read_hf_config(folder.path());
  CHECK(again.ok(), "{}", again.status().to_string());
  auto texts_again = fuzz::write(again->config);
  CHECK_EQ(texts_again.config_json, texts.config_json);
  CHECK_EQ(texts_again.generation_config_json, texts.generation_config_json);
  return 0;
}
