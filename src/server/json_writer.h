// JsonWriter: JSON written straight to text. A tree of values takes several times what their text does, and
// the log-probabilities of a long prompt are megabytes of text.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>

#include "src/base/json_text.h"

namespace llm_dist::server {

class JsonWriter {
 public:
  // Appends to `text`, which outlives it.
  explicit JsonWriter(std::string& text) : text_(text) {}

  // By write(), which writes keys and their values.
  template <typename Write>
  void object(Write write) {
    begin('{');
    write();
    end('}');
  }
  // Each of `items` by write(item), which writes a value.
  template <typename Items, typename Write>
  void array(const Items& items, Write write) {
    begin('[');
    for (const auto& item : items) write(item);
    end(']');
  }
  // Of elements that are JSON already, with commas between them.
  void array_of(std::string_view elements);

  void key(std::string_view name);  // its value comes next
  void value(std::string_view utf8);
  void value(double number);  // finite
  void value(std::nullptr_t);
  template <std::integral T>
  void value(T number) {
    separate();
    text_ += std::to_string(number);
  }
  template <typename T>
  void field(std::string_view name, const T& one) {
    key(name);
    value(one);
  }

 private:
  void begin(char bracket);
  void end(char bracket);
  // A comma, but for the first of an array or object, and behind a key.
  void separate();

  std::string& text_;
  bool first_ = true;
};

}  // namespace llm_dist::server
