#include "src/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

Result<std::vector<TensorInfo>> read_raw(const std::string& bytes) {
  TempDir dir;
  write_file(dir / "x.safetensors", bytes);
  auto file = open_posix_file(dir / "x.safetensors");
  if (!file.ok()) return file.status();
  return read_safetensors_header(**file, 0);
}

Result<std::vector<TensorInfo>> read_header(const std::string& header, size_t data_bytes) {
  uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  return read_raw(bytes + header + std::string(data_bytes, '\1'));
}

constexpr std::string_view kGood = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

TEST(Safetensors, ReadsAHeader) {
  auto tensors = read_header(std::string(kGood), 24);
  ASSERT_OK(tensors);
  ASSERT_EQ(tensors->size(), 1u);
  const TensorInfo& a = tensors->front();
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.rows, 2);
  EXPECT_EQ(a.cols, 3);
  EXPECT_EQ(a.offset, static_cast<int64_t>(8 + kGood.size()));
}

TEST(Safetensors, MetadataVectorsAndAnyOrder) {
  auto tensors =
      read_header(R"({"b":{"data_offsets":[4,8],"shape":[2],"dtype":"BF16"},"__metadata__":{"format":"pt"},)"
                  R"("a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}   )",
                  8);
  ASSERT_OK(tensors);
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].rows, 2);
  EXPECT_EQ((*tensors)[0].cols, 1);
  EXPECT_EQ((*tensors)[0].scheme, WeightScheme::kBF16);
}

TEST(Safetensors, HostileHeadersNameTheTensor) {
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string_view word;
  };
  const Case cases[] = {
      {R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"a":{"dtype":"F32","shape":[1],"data_offsets":[24,28]}})",
       28,
       "a stands there twice"},
      {R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})",
       20,
       "tensor a: F32 of shape [2, 3] is 24 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
       23,
       "tensor a: data_offsets [0, 24] outside"},
      {R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[24,0]}})", 24, "tensor a: data_offsets [24, 0]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12,
       "tensor b overlaps"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
       20,
       "tensor b leaves a hole"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "1 bytes behind the last tensor"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
       0,
       "tensor a: its shape is too large"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})",
       8,
       "tensor a: its shape is too large"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "negative number"},
      {R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8, "fraction"},
      {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8, "an array where none belongs"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,8]}})",
       8,
       "tensor a: dtype, shape or data_offsets is missing"},
      {R"({"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})", 8, "repeated field"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8, "not a pair"},
      {R"({"a":3})", 0, "a number where none belongs"},
      {R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8, "a number where none belongs"},
      {R"({"a":{"x":{"y":1}}})", 0, "an object where none belongs"},
      {R"({"a":{"dtype":"F32","shape":[2],)", 0, "not JSON"},
      {std::string(100000, '['), 0, "no JSON object"},
      {"", 0, "no JSON object"},
  };
  for (const Case& c : cases) {
    auto outcome = read_header(c.header, c.data_bytes);
    expect_failure(outcome, StatusCode::kDataLoss, {"x.safetensors", c.word});
  }
}

TEST(Safetensors, DtypesThatAreNoWeights) {
  expect_failure(read_header(R"({"a":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}})", 2),
                 StatusCode::kUnimplemented,
                 {"tensor a is F8_E5M2"});
  expect_failure(read_header(R"({"a":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]}})", 4),
                 StatusCode::kUnimplemented,
                 {"tensor a has 3 dimensions"});
}

TEST(Safetensors, TruncatedOrOversizedFiles) {
  expect_failure(read_raw("abc"), StatusCode::kDataLoss, {"too few"});
  uint64_t length = 1000;
  expect_failure(read_raw(std::string(reinterpret_cast<const char*>(&length), 8) + "{}"),
                 StatusCode::kDataLoss,
                 {"truncated"});
  length = 100'000'001;
  expect_failure(read_raw(std::string(reinterpret_cast<const char*>(&length), 8) + "{}"),
                 StatusCode::kDataLoss,
                 {"100000001"});
  length = ~uint64_t{0};
  expect_failure(read_raw(std::string(reinterpret_cast<const char*>(&length), 8) + "{}"),
                 StatusCode::kDataLoss,
                 {"header"});
}

// Every prefix of a good file fails cleanly.
TEST(Safetensors, EveryTruncationIsNoticed) {
  uint64_t length = kGood.size();
  std::string bytes =
      std::string(reinterpret_cast<const char*>(&length), 8) + std::string(kGood) + std::string(24, '\1');
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(read_raw(bytes.substr(0, size)).ok()) << size;
  EXPECT_TRUE(read_raw(bytes).ok());
}

}  // namespace
}  // namespace llm_dist::checkpoint
