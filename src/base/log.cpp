#include "src/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace llm_dist {
namespace {
spdlog::logger& logger() {
  static auto instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("llm-dist", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    made->set_level(spdlog::level::info);
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}
}  // namespace

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning" || name == "warn") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return invalid_argument(format("unknown log level '{}': one of debug, info, warning, error", name));
}

void set_log_level(LogLevel level) { logger().set_level(level_of(level)); }
bool log_enabled(LogLevel level) { return logger().should_log(level_of(level)); }
void log_line(LogLevel level, const std::string& line) {
  logger().log(level_of(level), "[{}] {}", process_identity(), line);
}
void flush_log() { logger().flush(); }

}  // namespace llm_dist
