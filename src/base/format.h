// format("rank {} of {}", 3, 8): replaces each {} by the next argument. Compiles with any C++20 library and
// inside CUDA sources, where std::format is missing (gcc 12) or fmt does not compile (nvcc).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace llm_dist {

std::string format_value(double value);  // shortest of %g with 6 digits
std::string format_pieces(std::string_view pattern, std::initializer_list<std::string> values);

template <typename T>
std::string to_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, char>) {
    return std::string(1, value);
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    return std::string(std::string_view(value));
  } else if constexpr (std::is_enum_v<T>) {
    if constexpr (requires { to_string(value); }) {
      return std::string(to_string(value));
    } else {
      return std::to_string(static_cast<int64_t>(value));
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    return format_value(static_cast<double>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return std::to_string(reinterpret_cast<uintptr_t>(value));
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    return std::string(to_string(value));
  }
}

// An object, not a function: with a library that has std::format, arguments of std types would make an
// unqualified call of a function ambiguous.
struct Format {
  template <typename... Args>
  std::string operator()(std::string_view pattern, const Args&... args) const {
    return format_pieces(pattern, {to_text(args)...});
  }
};
inline constexpr Format format;

}  // namespace llm_dist
