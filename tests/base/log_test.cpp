// What log lines look like, for people and for machines.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "src/base/json_text.h"
#include "src/base/log_format.h"

namespace llm_dist {
namespace {

using Json = nlohmann::json;

class Log : public testing::Test {
 protected:
  void SetUp() override { set_process_identity("rank 3 host node-7 pid 17"); }
  void TearDown() override {
    set_log_format(LogFormat::kText);
    set_log_level(LogLevel::kInfo);
  }

  template <typename F>
  std::vector<std::string> lines_of(F write) {
    testing::internal::CaptureStderr();
    write();
    flush_log();
    std::istringstream text(testing::internal::GetCapturedStderr());
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(Log, JsonIsAnObjectALine) {
  set_log_format(LogFormat::kJson);
  auto lines = lines_of([] {
    log_info("{} of \"{}\"\nnext", 2, "a\\b");
    log_request(LogLevel::kWarning, "req-1", "slow");
    announce("the end", true);
    log_debug("unheard");
  });
  ASSERT_EQ(lines.size(), 3u);
  Json first = Json::parse(lines[0]);
  EXPECT_EQ(first.at("message"), "2 of \"a\\b\"\nnext");
  EXPECT_EQ(first.at("level"), "info");
  EXPECT_EQ(first.at("rank"), 3);
  EXPECT_EQ(first.at("host"), "node-7");
  EXPECT_EQ(first.at("pid"), 17);
  EXPECT_FALSE(first.contains("request_id"));
  std::string time = first.at("ts");
  ASSERT_EQ(time.size(), std::string("2026-11-21T12:02:53.806Z").size());
  EXPECT_EQ(time[10], 'T');
  EXPECT_EQ(time.back(), 'Z');
  EXPECT_EQ(Json::parse(lines[1]).at("request_id"), "req-1");
  EXPECT_EQ(Json::parse(lines[1]).at("level"), "warning");
  EXPECT_EQ(Json::parse(lines[2]).at("message"), "the end");
  EXPECT_EQ(Json::parse(lines[2]).at("level"), "error");
}

TEST_F(Log, TextNamesRankAndRequest) {
  auto lines = lines_of([] {
    log_request(LogLevel::kInfo, "req-1", "done");
    log_info("ready");
    announce("the end");
  });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("info [rank 3 host node-7 pid 17 request req-1] done"), std::string::npos)
      << lines[0];
  EXPECT_NE(lines[1].find("info [rank 3 host node-7 pid 17] ready"), std::string::npos) << lines[1];
  EXPECT_EQ(lines[2], "llm-dist: the end");
}

TEST_F(Log, AnUnknownFormatNamesTheKnownOnes) {
  EXPECT_EQ(*parse_log_format("json"), LogFormat::kJson);
  EXPECT_NE(parse_log_format("xml").status().message().find("text or json"), std::string::npos);
}

TEST(JsonText, AnyBytesMakeValidJson) {
  std::string bytes;
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  for (const std::string& text : {bytes,
                                  std::string("\xC0\xAF"),          // overlong
                                  std::string("\xED\xA0\x80"),      // a surrogate
                                  std::string("\xF4\x90\x80\x80"),  // beyond the last character
                                  std::string("\xE2\x82")}) {       // cut off
    Json parsed = Json::parse(json_quoted(text), nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << json_quoted(text);
    EXPECT_EQ(json_quoted(text).find('\n'), std::string::npos);
  }
  for (const char* text : {"", "a\tb\"c\\d\n", "h\u00e9\u20ac\U0001F600", "\x7f"})
    EXPECT_EQ(Json::parse(json_quoted(text)).get<std::string>(), text);
}

TEST(JsonText, TellsWhatIsNestedTooDeep) {
  auto nested = [](int levels) { return std::string(levels, '[') + "1" + std::string(levels, ']'); };
  EXPECT_FALSE(json_is_too_deep(nested(kMaxJsonDepth)));
  EXPECT_TRUE(json_is_too_deep(nested(kMaxJsonDepth + 1)));
  std::string alternating;
  for (int i = 0; i <= kMaxJsonDepth / 2; ++i) alternating += R"({"a":[)";
  EXPECT_TRUE(json_is_too_deep(alternating));
  // What stands in strings does not count, nor what has been closed.
  EXPECT_FALSE(json_is_too_deep(R"({"a": "\"[ )" + std::string(100, '{') + "\"}"));
  std::string wide = "[";
  for (int i = 0; i < 100; ++i) wide += "[],";
  EXPECT_FALSE(json_is_too_deep(wide + "1]"));
  // A string that ends in an escaped backslash has ended.
  EXPECT_TRUE(json_is_too_deep(R"(["\\")" + nested(kMaxJsonDepth)));
}

}  // namespace
}  // namespace llm_dist
