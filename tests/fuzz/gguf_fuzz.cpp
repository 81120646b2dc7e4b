// A GGUF file: the container, what its metadata means, and the whole checkpoint with its tensors.
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/gguf.h"
#include "src/checkpoint/gguf_model.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/hf_tokenizer.h"
#include "tests/fuzz/memory_file.h"

namespace llm_dist::fuzz {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufFile;
using checkpoint::GgufTensor;

void expect_places(const GgufFile& gguf, int64_t file_bytes) {
  std::vector<ByteRange> ranges;
  for (const GgufTensor& tensor : gguf.tensors) {
    CHECK(tensor.bytes > 0, "{}", tensor.name);
    ranges.push_back({tensor.offset, tensor.bytes});
  }
  expect_apart(std::move(ranges), file_bytes);
}

// Without the tokenizer's arrays the rest is the same.
void expect_same_without_tokenizer(const GgufFile& gguf, const MemoryFile& file) {
  auto lean = checkpoint::read_gguf(file, {.keep_tokenizer = false});
  CHECK(lean.ok(), "{}", lean.status().to_string());
  CHECK_EQ(lean->tensors.size(), gguf.tensors.size());
  for (size_t i = 0; i < gguf.tensors.size(); ++i)
    CHECK(lean->tensors[i].name == gguf.tensors[i].name && lean->tensors[i].offset == gguf.tensors[i].offset);
}

void read_config(const GgufFile& gguf) {
  auto config = checkpoint::config_from_gguf(gguf, "m.gguf");
  if (!config.ok()) return expect_message(config.status());
  static const ScratchFolder scratch;
  auto texts = checkpoint::write_hf_config(*config);
  if (!texts.ok()) return expect_message(texts.status());
  scratch.write("config.json", texts->config_json);
  scratch.write("generation_config.json", texts->generation_config_json);
  auto again = checkpoint::read_hf_config(scratch.path());
  CHECK(again.ok(), "{}", again.status().to_string());
  CHECK_EQ(again->config.hidden_size, config->hidden_size);
  CHECK_EQ(again->config.head_dim, config->head_dim);
  CHECK_EQ(again->config.vocab_size, config->vocab_size);
  CHECK(again->config.eos_ids == config->eos_ids && again->config.bos_id == config->bos_id);
  auto tensors = checkpoint::tensors_from_gguf(gguf, *config, "m.gguf");
  if (!tensors.ok()) expect_message(tensors.status());
}

void read_tokenizer(const GgufFile& gguf) {
  auto spec = checkpoint::tokenizer_from_gguf(gguf, "m.gguf");
  if (!spec.ok()) return expect_message(spec.status());
  CHECK(is_utf8(checkpoint::tokenizer_config_json(*spec)));
}

void open_checkpoint(std::string_view bytes) {
  static const ScratchFolder scratch;
  scratch.write("m.gguf", "");  // open() looks whether it stands there
  checkpoint::CheckpointOptions options;
  options.open_file = [bytes](const std::string& path) {
    return Result<std::unique_ptr<checkpoint::RandomAccessFile>>(std::make_unique<MemoryFile>(path, bytes));
  };
  auto opened = Checkpoint::open(scratch.path_of("m.gguf"), checkpoint::LoadFormat::kGguf, options);
  if (!opened.ok()) return expect_message(opened.status());
  const Checkpoint& checkpoint = **opened;
  expect_apart(checkpoint.tensors(), static_cast<int64_t>(bytes.size()));
  for (const checkpoint::TensorInfo& tensor : checkpoint.tensors()) {
    std::string got(static_cast<size_t>(tensor.bytes()), '\0');
    checkpoint::SliceRequest request = checkpoint::whole(tensor, reinterpret_cast<std::byte*>(got.data()));
    auto read = checkpoint.read({&request, 1});
    CHECK(read.ok(), "{}", read.status().to_string());
  }
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  std::string_view bytes = fuzz::text_of(data, size);
  fuzz::MemoryFile file("m.gguf", bytes);
  auto gguf = checkpoint::read_gguf(file);
  if (!gguf.ok()) {
    fuzz::expect_message(gguf.status());
    CHECK(gguf.status().message().starts_with("m.gguf"), "{}", gguf.status().message());
    return 0;
  }
  fuzz::expect_places(*gguf, file.size_bytes());
  fuzz::expect_same_without_tokenizer(*gguf, file);
  fuzz::read_config(*gguf);
  fuzz::read_tokenizer(*gguf);
  fuzz::open_checkpoint(bytes);
  return 0;
}
