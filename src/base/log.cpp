#include "src/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "src/base/json_text.h"
#include "src/base/log_format.h"

namespace llm_dist {
namespace {
constexpr const char* kTextPattern = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v";

struct Log {
  spdlog::logger lines{"llm-dist", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()};
  std::atomic<LogFormat> format{LogFormat::kText};

  Log() {
    lines.set_pattern(kTextPattern);
    lines.set_level(spdlog::level::info);
    lines.flush_on(spdlog::level::info);
  }
};

Log& instance() {
  static Log log;
  return log;
}
spdlog::logger& logger() { return instance().lines; }

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kNothing: return spdlog::level::off;
  }
  return spdlog::level::info;
}

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
    case LogLevel::kNothing: return "nothing";
  }
  return "info";
}

// RFC 3339, UTC, milliseconds.
std::string utc_now() {
  auto since = std::chrono::system_clock::now().time_since_epoch();
  auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  auto seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof text - size, ".%03dZ", static_cast<int>(milliseconds % 1000));
  return text;
}

// "rank 3 host a pid 17" as members: names and values take turns.
std::string identity_members() {
  std::string members;
  std::string_view rest = process_identity();
  auto word = [&rest] {
    size_t end = rest.find(' ');
    std::string_view one = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    return one;
  };
  while (!rest.empty()) {
    std::string_view name = word();
    std::string_view value = word();
    bool number = !value.empty() && value.find_first_not_of("0123456789") == std::string_view::npos;
    members += "," + json_quoted(name) + ":" + (number ? std::string(value) : json_quoted(value));
  }
  return members;
}

std::string json_line(LogLevel level, const std::string& line, std::string_view request_id) {
  std::string text =
      "{\"ts\":\"" + utc_now() + "\",\"level\":\"" + name_of(level) + "\"" + identity_members();
  if (!request_id.empty()) text += ",\"request_id\":" + json_quoted(request_id);
  return text + ",\"message\":" + json_quoted(line) + "}";
}
}  // namespace

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning" || name == "warn") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return invalid_argument(format("unknown log level '{}': one of debug, info, warning, error", name));
}

Result<LogFormat> parse_log_format(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return invalid_argument(format("unknown log format '{}': text or json", name));
}

void set_log_level(LogLevel level) { logger().set_level(level_of(level)); }
bool log_enabled(LogLevel level) { return logger().should_log(level_of(level)); }

void set_log_format(LogFormat wanted) {
  instance().format = wanted;
  logger().set_pattern(wanted == LogFormat::kJson ? "%v" : kTextPattern);
}
LogFormat log_format() { return instance().format; }

void log_line(LogLevel level, const std::string& line) { log_tagged_line(level, line, {}); }

void log_tagged_line(LogLevel level, const std::string& line, std::string_view request_id) {
  if (log_format() == LogFormat::kJson) {
    logger().log(level_of(level), "{}", json_line(level, line, request_id));
  } else if (request_id.empty()) {
    logger().log(level_of(level), "[{}] {}", process_identity(), line);
  } else {
    logger().log(level_of(level), "[{} request {}] {}", process_identity(), request_id, line);
  }
}

void announce(const std::string& line, bool fresh_line) {
  bool json = log_format() == LogFormat::kJson;
  std::string text = json ? json_line(LogLevel::kError, line, {}) : "llm-dist: " + line;
  std::fprintf(stderr, "%s%s\n", fresh_line && !json ? "\n" : "", text.c_str());
}

void flush_log() { logger().flush(); }

}  // namespace llm_dist
