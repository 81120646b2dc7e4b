#include "src/checkpoint/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "src/checkpoint/gguf_model.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

Result<GgufFile> read_raw(const std::string& bytes, const GgufReadOptions& options = {}) {
  TempDir dir;
  write_file(dir / "x.gguf", bytes);
  auto file = open_posix_file(dir / "x.gguf");
  if (!file.ok()) return file.status();
  return read_gguf(**file, options);
}

class MemoryFile final : public RandomAccessFile {
 public:
  explicit MemoryFile(const std::string& bytes) : bytes_(bytes) {}
  const std::string& path() const override { return path_; }
  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  void will_need(int64_t, int64_t) const override {}
  Status read_at(int64_t offset, std::span<const iovec> buffers) const override {
    for (const iovec& buffer : buffers) {
      auto length = static_cast<int64_t>(buffer.iov_len);
      if (offset < 0 || offset + length > size_bytes()) return data_loss("read outside the file");
      std::memcpy(buffer.iov_base, bytes_.data() + offset, buffer.iov_len);
      offset += length;
    }
    return ok_status();
  }

 private:
  std::string path_ = "memory.gguf";
  const std::string& bytes_;
};

// Builds the bytes of a file piece by piece, right or wrong.
struct Bytes {
  std::string text;
  template <typename T>
  Bytes& put(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& raw(std::string_view more) {
    text.append(more);
    return *this;
  }
  Bytes& string(std::string_view more) { return put<uint64_t>(more.size()).raw(more); }
  Bytes& tensor(std::string_view name, std::initializer_list<uint64_t> dims, uint32_t type, uint64_t offset) {
    string(name).put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) put(dim);
    return put(type).put(offset);
  }
  std::string with_data(size_t bytes) const {
    std::string all = text;
    all.resize((all.size() + 31) / 32 * 32, '\0');
    return all + std::string(bytes, '\1');
  }
};

Bytes preamble(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  return Bytes().raw("GGUF").put(version).put(tensors).put(keys);
}

TEST(Gguf, WritesAndReadsBack) {
  TempDir dir;
  GgufMetadata metadata = tiny_gguf_metadata();
  metadata["negative"] = int64_t{-5};
  metadata["floats"] = std::vector<double>{0.5, -2.0};
  ASSERT_OK(write_gguf(dir / "x.gguf", metadata, tiny_gguf_tensors(WeightScheme::kQ4_0)));
  auto file = open_posix_file(dir / "x.gguf");
  ASSERT_OK(file);
  auto read = read_gguf(**file);
  ASSERT_OK(read);
  for (const auto& [key, value] : metadata) {
    ASSERT_TRUE(read->metadata.contains(key)) << key;
    if (const auto* number = std::get_if<double>(&value)) {
      EXPECT_FLOAT_EQ(static_cast<float>(std::get<double>(read->metadata.at(key))),
                      static_cast<float>(*number));
    } else {
      EXPECT_TRUE(read->metadata.at(key) == value) << key;
    }
  }
  auto written = tiny_gguf_tensors(WeightScheme::kQ4_0);
  ASSERT_EQ(read->tensors.size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    const GgufTensor& tensor = read->tensors[i];
    EXPECT_EQ(tensor.dims, written[i].dims);
    EXPECT_EQ(tensor.offset % 32, 0);
    std::vector<std::byte> data(written[i].data.size());
    ASSERT_EQ(tensor.bytes, static_cast<int64_t>(data.size()));
    ASSERT_OK((*file)->read_bytes(tensor.offset, data.data(), tensor.bytes));
    EXPECT_EQ(data, written[i].data) << tensor.name;
  }
  auto lean = read_gguf(**file, {.keep_tokenizer = false});
  ASSERT_OK(lean);
  EXPECT_FALSE(lean->metadata.contains("tokenizer.ggml.tokens"));
  EXPECT_TRUE(lean->metadata.contains("tokenizer.ggml.eos_token_id"));
  EXPECT_EQ(lean->tensors.size(), written.size());
}

TEST(Gguf, HostileHeadersAreRefused) {
  constexpr uint32_t kU32 = 4, kString = 8, kArray = 9;
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  struct Case {
    std::string bytes;
    std::string_view word;
  };
  const Case cases[] = {
      {"", "truncated"},
      {"GGUX" + std::string(40, '\0'), "not a GGUF file"},
      {preamble(kHuge, 0).with_data(64), "tensors in a file of this size"},
      {preamble(0, kHuge).with_data(64), "metadata keys in a file of this size"},
      {preamble(0, 1).put(kHuge).with_data(64), "a string of"},
      {preamble(0, 1).string("k").put(kString).put(kHuge).with_data(64), "a string of"},
      {preamble(0, 1).string("k").put(kString).put<uint64_t>(1000).with_data(64), "truncated"},
      {preamble(0, 1).string("k").put(kArray).put(kU32).put(kHuge).with_data(64), "key k: an array of"},
      {preamble(0, 1).string("k").put(kArray).put(kString).put<uint64_t>(1000).with_data(64),
       "key k: an array of"},
      {preamble(0, 1).string("k").put(kArray).put(kArray).put<uint64_t>(1).with_data(64),
       "key k: array of type"},
      {preamble(0, 1).string("k").put<uint32_t>(77).with_data(64), "key k: unknown type"},
      {preamble(0, 2).string("k").put(kU32).put(1u).string("k").put(kU32).put(1u).with_data(64),
       "key k stands there twice"},
      {preamble(0, 1).string("general.alignment").put(kU32).put(33u).with_data(64), "general.alignment"},
      {preamble(0, 1).string("general.alignment").put(kU32).put(0u).with_data(64), "general.alignment"},
      {preamble(0, 1).string("general.alignment").put(kString).string("x").with_data(64),
       "general.alignment"},
      {preamble(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).with_data(64),
       "tensor t stands there twice"},
      {preamble(2, 0).tensor("t", {16}, 0, 0).tensor("u", {4}, 0, 32).with_data(64),
       "tensors t and u overlap"},
      {preamble(1, 0).tensor("t", {4}, 0, 8).with_data(64), "tensor t: offset 8 is no multiple"},
      {preamble(1, 0).tensor("t", {4}, 0, 1024).with_data(64), "tensor t: 16 bytes from"},
      {preamble(1, 0).tensor("t", {400}, 0, 0).with_data(64), "tensor t: 1600 bytes from"},
      {preamble(1, 0).tensor("t", {4}, 0, ~uint64_t{0}).with_data(64), "tensor t: offset"},
      {preamble(1, 0).tensor("t", {33}, 8, 0).with_data(64), "tensor t: rows do not fill blocks"},
      {preamble(1, 0).tensor("t", {kHuge, kHuge}, 0, 0).with_data(64), "tensor t: impossible shape"},
      {preamble(1, 0).tensor("t", {0}, 0, 0).with_data(64), "tensor t: impossible shape"},
      {preamble(1, 0).tensor("t", {~uint64_t{0}}, 0, 0).with_data(64), "tensor t: impossible shape"},
      {preamble(1, 0).string("t").put<uint32_t>(9).with_data(64), "tensor t: 9 dimensions"},
  };
  for (const Case& c : cases) expect_failure(read_raw(c.bytes), StatusCode::kDataLoss, {"x.gguf", c.word});
}

TEST(Gguf, Llama3VocabulariesPutABosFirstUnlessTheySayOtherwise) {
  for (const char* name : {"llama-bpe", "llama3", "llama-v3", "smollm"}) {
    GgufFile gguf{.metadata = tiny_gguf_metadata()};
    gguf.metadata["tokenizer.ggml.pre"] = std::string(name);
    EXPECT_FALSE(tokenizer_from_gguf(gguf, "m.gguf")->add_bos) << name;
    gguf.metadata.erase("tokenizer.ggml.add_bos_token");
    EXPECT_EQ(tokenizer_from_gguf(gguf, "m.gguf")->add_bos, std::string(name) != "smollm") << name;
    EXPECT_FALSE(tokenizer_from_gguf(gguf, "m.gguf")->add_eos) << name;
    gguf.metadata["tokenizer.ggml.add_eos_token"] = true;
    EXPECT_TRUE(tokenizer_from_gguf(gguf, "m.gguf")->add_eos) << name;
  }
}

TEST(Gguf, UnservedTypesAndVersionsAreNamed) {
  expect_failure(read_raw(preamble(1, 0).tensor("t", {256}, 12, 0).with_data(512)),
                 StatusCode::kUnimplemented,
                 {"tensor t is Q4_K"});
  expect_failure(read_raw(preamble(1, 0).tensor("t", {256}, 99, 0).with_data(512)),
                 StatusCode::kUnimplemented,
                 {"type 99"});
  expect_failure(read_raw(preamble(0, 0, 2).with_data(64)), StatusCode::kUnimplemented, {"GGUF version 2"});
}

// Every truncation, and every byte of the header turned over, ends in a status or in a sane header: never in
// a crash or a huge allocation (the sanitizers watch).
TEST(Gguf, DamagedHeadersNeverCrash) {
  TempDir dir;
  write_tiny_gguf(dir / "good.gguf", WeightScheme::kQ8_0);
  const std::string good = read_file(dir / "good.gguf");
  std::string bytes;
  CheckpointOptions options;
  options.open_file = [&bytes](const std::string&) -> Result<std::unique_ptr<RandomAccessFile>> {
    return std::unique_ptr<RandomAccessFile>(std::make_unique<MemoryFile>(bytes));
  };
  auto open = [&] { return Checkpoint::open(dir / "good.gguf", LoadFormat::kGguf, options); };
  bytes = good;
  ASSERT_OK(open());
  for (size_t size = 0; size < good.size(); size += 97) {
    bytes = good.substr(0, size);
    EXPECT_FALSE(open().ok()) << size;
  }
  bytes = good;
  constexpr size_t kHeaderBytes = 4000;
  for (size_t at = 0; at < kHeaderBytes; ++at) {
    bytes[at] = static_cast<char>(~good[at]);
    auto opened = open();
    EXPECT_EQ(opened.ok(), opened.status().message().empty());
    bytes[at] = good[at];
  }
}

}  // namespace
}  // namespace llm_dist::checkpoint
