#include "src/server/json_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace llm_dist::server {
namespace {

TEST(JsonWriter, SeparatesWhatItNests) {
  std::string text;
  JsonWriter json(text);
  json.object([&] {
    json.field("a", 1);
    json.key("b");
    json.array(std::vector<int>{2, 3}, [&](int item) { json.object([&] { json.field("c", item); }); });
    json.key("d");
    json.array_of("4,5");
    json.key("e");
    json.object([] {});
    json.key("f");
    json.array(std::vector<int>(), [&](int item) { json.value(item); });
    json.field("g", nullptr);
  });
  EXPECT_EQ(text, R"({"a":1,"b":[{"c":2},{"c":3}],"d":[4,5],"e":{},"f":[],"g":null})");
}

TEST(JsonWriter, NumbersAndTextsComeBack) {
  const std::vector<double> numbers = {0, -1, -0.25, -9999, 1e-40, -1e30, static_cast<double>(-0.1f)};
  for (double number : numbers) {
    std::string text;
    JsonWriter(text).value(number);
    const auto read = nlohmann::json::parse(text);
    EXPECT_TRUE(read.is_number_float()) << text;
    EXPECT_EQ(read.get<double>(), number) << text;
  }
  for (const char* utf8 : {"", "a \"b\" \\ \n\t\x01\x7f", "\u00e9 \U0001F600"}) {
    std::string text;
    JsonWriter(text).value(utf8);
    EXPECT_EQ(nlohmann::json::parse(text), utf8);
  }
}

}  // namespace
}  // namespace llm_dist::server
