#include "src/server/json_writer.h"

#include <charconv>

namespace llm_dist::server {

void JsonWriter::array_of(std::string_view elements) {
  begin('[');
  text_ += elements;
  end(']');
}

void JsonWriter::key(std::string_view name) {
  separate();
  text_ += json_quoted(name);
  text_ += ':';
  first_ = true;
}

void JsonWriter::value(std::string_view utf8) {
  separate();
  text_ += json_quoted(utf8);
}

void JsonWriter::value(double number) {
  separate();
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  const std::string_view shortest(digits, static_cast<size_t>(end - digits));
  text_ += shortest;
  // Clients in typed languages take a number without a point for an integer.
  if (shortest.find_first_of(".e") == std::string_view::npos) text_ += ".0";
}

void JsonWriter::value(std::nullptr_t) {
  separate();
  text_ += "null";
}

void JsonWriter::begin(char bracket) {
  separate();
  text_ += bracket;
  first_ = true;
}

void JsonWriter::end(char bracket) {
  text_ += bracket;
  first_ = false;
}

void JsonWriter::separate() {
  if (!first_) text_ += ',';
  first_ = false;
}

}  // namespace llm_dist::server
