#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "src/base/bounded_queue.h"
#include "src/base/dtype.h"
#include "src/base/fnv1a.h"
#include "src/base/log.h"
#include "src/base/logit_rules.h"
#include "src/base/nearest.h"
#include "src/base/open_files.h"
#include "src/base/run_time_module.h"
#include "src/base/small_file.h"
#include "src/base/status.h"
#include "src/base/tensor.h"
#include "src/base/token_mask.h"
#include "src/base/weight.h"

namespace llm_dist {
namespace {

TEST(Format, ReplacesBracesInOrder) {
  EXPECT_EQ(format("rank {} of {}: {}", 3, 8, true), "rank 3 of 8: true");
  EXPECT_EQ(format("{} {}", DType::kBF16, 0.5), "bf16 0.5");
  EXPECT_EQ(format("no arguments {}"), "no arguments {}");
}

// From the test vectors of draft-eastlake-fnv.
TEST(Fnv1a, AsItsAuthorsSay) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
}

TEST(DType, EveryHalfValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    float value = to_float(Float16{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(value))));
    } else {
      ASSERT_EQ(to_f16(value).bits, bits);
    }
    float wide = to_float(BFloat16{static_cast<uint16_t>(bits)});
    if (!std::isnan(wide)) {
      ASSERT_EQ(to_bf16(wide).bits, bits);
    }
  }
}

TEST(DType, F8AsItsDefinitionSays) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const int exponent = static_cast<int>(bits >> 3) & 15;
    const int mantissa = static_cast<int>(bits) & 7;
    const float value = to_float(Float8E4M3{static_cast<uint8_t>(bits)});
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(to_float(to_f8e4m3(value))));
      continue;
    }
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    ASSERT_EQ(value, bits < 0x80 ? magnitude : -magnitude);
    ASSERT_EQ(to_f8e4m3(value).bits, bits);
  }
}

TEST(DType, F8RoundsToNearestEvenAndSaturates) {
  for (uint32_t bits = 0; bits < 0x7e; ++bits) {
    const float low = to_float(Float8E4M3{static_cast<uint8_t>(bits)});
    const float high = to_float(Float8E4M3{static_cast<uint8_t>(bits + 1)});
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_f8e4m3(middle).bits, bits + bits % 2) << low;
    EXPECT_EQ(to_f8e4m3(std::nextafter(middle, 0.0f)).bits, bits) << low;
    EXPECT_EQ(to_f8e4m3(-std::nextafter(middle, 1e9f)).bits, 0x80 | (bits + 1)) << low;
  }
  for (float large : {449.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_float(to_f8e4m3(large)), 448.0f);
    EXPECT_EQ(to_float(to_f8e4m3(-large)), -448.0f);
  }
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(to_float(to_f16(2049.0f)), 2048.0f);
  EXPECT_EQ(to_float(to_f16(2051.0f)), 2052.0f);
  EXPECT_EQ(to_float(to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(to_float(to_f16(65520.0f))));
  EXPECT_EQ(to_float(to_bf16(257.0f)), 256.0f);
  EXPECT_EQ(to_float(to_bf16(259.0f)), 260.0f);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Tensor, ViewsShareTheData) {
  float values[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  Tensor all = Tensor::contiguous(values, DType::kF32, {3, 4});
  EXPECT_TRUE(all.is_contiguous());
  EXPECT_EQ(all.rows(1, 2).as<float>()[0], 4.0f);
  Tensor columns = all.narrow(1, 1, 2);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(columns.as<float>()[columns.stride(0)], 5.0f);
  EXPECT_EQ(all.reshaped({2, 6}).dim(1), 6);
  EXPECT_EQ(all.to_string(), "f32[3, 4] cpu:0");
}

TEST(TensorDeath, RowsOutsideAreABug) {
  Tensor tensor = Tensor::contiguous(nullptr, DType::kF32, {3, 4});
  EXPECT_DEATH((void)tensor.rows(2, 2), "CHECK failed");
}

TEST(Status, CarriesItsContext) {
  Status status = not_found("x.safetensors").with_context("loading");
  EXPECT_EQ(status.to_string(), "not_found: loading: x.safetensors");
  Result<int> result = status;
  EXPECT_FALSE(result.ok());
  Result<int> three = 3;
  EXPECT_TRUE(three.ok());
  EXPECT_EQ(*three, 3);
}

TEST(Weight, BlockRowsHaveTheirBytes) {
  EXPECT_EQ(row_bytes(WeightScheme::kQ4_1, 576), 18 * 20);
  EXPECT_EQ(row_bytes(WeightScheme::kBF16, 576), 1152);
}

TEST(Weight, ScalesOfRowsCount) {
  EXPECT_EQ((Weight{.scheme = WeightScheme::kF8E4M3, .n = 10, .k = 33}.bytes()), 10 * 33 + 10 * 4);
  EXPECT_EQ((Weight{.scheme = WeightScheme::kBF16, .n = 10, .k = 33}.bytes()), 10 * 33 * 2);
}

TEST(Clock, WhatNobodyWaitsForIsFarAway) {
  EXPECT_FALSE(Deadline::after_seconds(1e300).expired());
  EXPECT_GT(Deadline::after_seconds(1e10).remaining(), std::chrono::hours(24 * 365));
  EXPECT_TRUE(Deadline::after_seconds(-1e300).expired());
}

TEST(BoundedQueue, KeepsOrderAndCapacity) {
  BoundedQueue<int> queue(2);
  int one = 1, two = 2, three = 3;
  EXPECT_TRUE(queue.try_push(one));
  EXPECT_TRUE(queue.try_push(two));
  EXPECT_FALSE(queue.try_push(three));
  EXPECT_EQ(queue.try_pop(), 1);
  EXPECT_EQ(queue.pop(Deadline::after_seconds(1)), 2);
  EXPECT_FALSE(queue.pop(Deadline::after_seconds(0.01)).has_value());
  queue.close();
  EXPECT_FALSE(queue.push(1, Deadline::after_seconds(1)));
}

TEST(Nearest, CountsEditsAndTakesTheFirstOfEquals) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  const std::string_view known[] = {"temperature", "top_p", "top_k"};
  EXPECT_EQ(nearest_word("temprature", known), "temperature");
  EXPECT_EQ(nearest_word("top_x", known), "top_p");
  EXPECT_EQ(nearest_word("anything", {}), "");
}

TEST(OpenFiles, SomeAreLeftWhateverAProcessWantsForItself) {
  EXPECT_EQ(files_left(20'000, 300), 19'700u);
  EXPECT_EQ(files_left(1024, 384), 640u);
  EXPECT_EQ(files_left(128, 384), 32u);
  EXPECT_GT(files_left(RLIM_INFINITY, 384), 1'000'000u);
}

TEST(RunTimeModule, FoldersBesideTheExecutableAndAbove) {
  auto folders = module_folders("/opt/llm/bin/llm-dist", "");
  ASSERT_GE(folders.size(), 2u);
  EXPECT_EQ(folders[0], "/opt/llm/bin/lib/llm-dist");
  EXPECT_EQ(folders[1], "/opt/llm/lib/llm-dist");
  EXPECT_EQ(module_folders("/opt/llm/bin/llm-dist", "/m"), std::vector<std::string>{"/m"});
}

TEST(RunTimeModule, SaysWhatIsMissing) {
  auto opened = open_module({.file = "libno_such_module.so",
                             .entry = "entry",
                             .how_to_build = "build it",
                             .how_to_install = "install it"});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("libno_such_module.so is not in"), std::string::npos);
  EXPECT_NE(opened.status().message().find("build it"), std::string::npos);
}

TEST(RunTimeModule, IsNotOpenedWithoutItsDriver) {
  std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "llm-dist-modules";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libmodule.so") << "no shared object: opening it would be another error";
  setenv("LLM_DIST_MODULE_DIR", folder.c_str(), 1);
  auto opened = open_module({.file = "libmodule.so",
                             .entry = "entry",
                             .how_to_build = "build it",
                             .how_to_install = "install it",
                             .driver = "libno_such_driver.so.1",
                             .how_to_get_driver = "ask for one"});
  unsetenv("LLM_DIST_MODULE_DIR");
  std::filesystem::remove_all(folder);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("libno_such_driver.so.1"), std::string::npos);
  EXPECT_NE(opened.status().message().find(": ask for one"), std::string::npos);
}

TEST(LogitRules, PackedWordsAreWhatTheHeaderSays) {
  const TokenBias biases[] = {{7, 0.5f}};
  const std::vector<int32_t> bans[] = {{1}, {2, 3}};
  const LogitRules rules = pack_rules({9, 4, 9}, biases, bans);
  EXPECT_EQ(rules.counts.num_allowed, 2);
  EXPECT_EQ(rules.counts.num_biases, 1);
  EXPECT_EQ(rules.counts.num_bans, 2);
  EXPECT_EQ(rules.counts.num_words, 11);
  EXPECT_EQ(rules.words, (std::vector<int32_t>{4, 9, 7, 0x3f000000, 8, 1, 9, 2, 1, 2, 3}));
  EXPECT_TRUE(check_rules(rules.counts, rules.words).ok());
  EXPECT_TRUE(check_rules({}, {}).ok());
}

TEST(LogitRules, WordsThatLeadOutsideAreRefused) {
  const std::vector<int32_t> bans[] = {{1}, {2, 3}};
  const LogitRules rules = pack_rules({}, {}, bans);
  const auto checked = [&](auto change) {
    LogitRules changed = rules;
    change(changed);
    return check_rules(changed.counts, changed.words).code();
  };
  EXPECT_EQ(checked([](LogitRules& changed) { changed.words.push_back(0); }), StatusCode::kDataLoss);
  EXPECT_EQ(checked([](LogitRules& changed) { changed.counts.num_bans = 0x7fffffff; }),
            StatusCode::kDataLoss);
  EXPECT_EQ(checked([](LogitRules& changed) { changed.counts.num_biases = -1; }), StatusCode::kDataLoss);
  EXPECT_EQ(checked([](LogitRules& changed) { changed.words[0] = 3; }), StatusCode::kDataLoss)
      << "in the table";
  EXPECT_EQ(checked([](LogitRules& changed) { changed.words[1] = 0; }), StatusCode::kDataLoss);
  EXPECT_EQ(checked([](LogitRules& changed) { changed.words[3] = 0x7fffffff; }), StatusCode::kDataLoss);
}

TEST(NearWord, IsNamedWhereItMayBeMeant) {
  constexpr std::string_view kKnown[] = {"temperature", "stop", "n", "--tp-size"};
  EXPECT_EQ(near_word("temprature", kKnown), "temperature");
  EXPECT_EQ(near_word("stopp", kKnown), "stop");
  EXPECT_EQ(near_word("--tp-sice", kKnown), "--tp-size");
  EXPECT_EQ(near_word("echo", kKnown), "");
  EXPECT_EQ(near_word("--pp", kKnown), "");
  EXPECT_EQ(near_word(std::string(1 << 20, 'n'), kKnown), "");
  EXPECT_EQ(near_word("x", {}), "");
}

TEST(SmallFile, IsReadWholeOrNotAtAll) {
  const std::string path = testing::TempDir() + "/small_file_test";
  std::ofstream(path) << std::string(100'000, 'x');
  Result<std::string> text = read_small_file(path);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, std::string(100'000, 'x'));
  EXPECT_TRUE(read_small_file(path, 100'000).ok());
  EXPECT_EQ(read_small_file(path, 99'999).status().code(), StatusCode::kInvalidArgument);
  std::filesystem::remove(path);
  EXPECT_EQ(read_small_file(path).status().message(), path + " cannot be read: No such file or directory");
  EXPECT_EQ(read_small_file(path).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_small_file("/tmp").status().message(), "/tmp cannot be read: Is a directory");
  EXPECT_EQ(read_small_file("/dev/zero").status().code(), StatusCode::kInvalidArgument);
}

TEST(TokenMask, ReadsBits) {
  uint32_t words[2] = {0x80000000u, 1u};
  TokenMask mask{words};
  EXPECT_TRUE(mask.allows(31));
  EXPECT_TRUE(mask.allows(32));
  EXPECT_FALSE(mask.allows(33));
}

}  // namespace
}  // namespace llm_dist
