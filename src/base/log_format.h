// Lines for machines: the log as JSON, and lines tagged with the request that they are about.
#pragma once

#include <string>
#include <string_view>

#include "src/base/log.h"

namespace llm_dist {

enum class LogFormat : int {
  kText,  // for people
  kJson,  // an object a line: ts, level, rank, host, pid, request_id, message
};

// "text" or "json".
Result<LogFormat> parse_log_format(std::string_view name);
void set_log_format(LogFormat wanted);
LogFormat log_format();

// `request_id`: of the client's request that the line is about; empty: of none.
void log_tagged_line(LogLevel level, const std::string& line, std::string_view request_id);

template <typename... Args>
void log_request(LogLevel level, std::string_view request_id, std::string_view pattern, const Args&... args) {
  if (log_enabled(level)) log_tagged_line(level, format(pattern, args...), request_id);
}

// What ends a command, for whoever typed it: "llm-dist: LINE", without time and level; in JSON an error like
// others. `fresh_line`: something else may stand half written on the terminal's line.
void announce(const std::string& line, bool fresh_line = false);

}  // namespace llm_dist
