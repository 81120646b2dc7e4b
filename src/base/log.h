// Log lines to standard error, each with time, level and the process's identity. Never prompts, never keys.
#pragma once

#include <string>
#include <string_view>

#include "src/base/format.h"
#include "src/base/status.h"

namespace llm_dist {

// kNothing: no line has it, for set_log_level() alone.
enum class LogLevel : int { kDebug, kInfo, kWarning, kError, kNothing };

// "debug", "info", "warning" or "error".
Result<LogLevel> parse_log_level(std::string_view name);
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& line);
void flush_log();

template <typename... Args>
void log_debug(std::string_view pattern, const Args&... args) {
  if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, format(pattern, args...));
}
template <typename... Args>
void log_info(std::string_view pattern, const Args&... args) {
  if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, format(pattern, args...));
}
template <typename... Args>
void log_warning(std::string_view pattern, const Args&... args) {
  if (log_enabled(LogLevel::kWarning)) log_line(LogLevel::kWarning, format(pattern, args...));
}
template <typename... Args>
void log_error(std::string_view pattern, const Args&... args) {
  if (log_enabled(LogLevel::kError)) log_line(LogLevel::kError, format(pattern, args...));
}

}  // namespace llm_dist
