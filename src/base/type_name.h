// What a caught exception is, for a log line: its message may quote what a client sent.
#pragma once

#include <exception>
#include <string>

namespace llm_dist {

// "std::bad_alloc"
std::string type_name(const std::exception& exception);

}  // namespace llm_dist
