#include "tests/server/json_schema.h"

#include <algorithm>
#include <set>

namespace llm_dist::server {
namespace {

using Json = nlohmann::json;

bool has_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

bool fits_type(const Json& types, const Json& value) {
  if (types.is_string()) return has_type(value, types);
  for (const Json& type : types)
    if (has_type(value, type)) return true;
  return false;
}

std::string object_misfit(const Json& document, const Json& schema, const Json& value) {
  for (const Json& name : schema.value("required", Json::array()))
    if (!value.contains(name.get<std::string>())) return ": lacks " + name.get<std::string>();
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, member] : value.items()) {
    if (!properties.contains(name)) {
      if (schema.value("additionalProperties", true)) continue;
      return ": has " + name;
    }
    std::string misfit = schema_misfit(document, properties.at(name), member);
    if (!misfit.empty()) return "." + name + misfit;
  }
  return "";
}

}  // namespace

std::string schema_misfit(const Json& document, const Json& schema, const Json& value) {
  static const std::set<std::string> kKnown = {"type",
                                               "enum",
                                               "required",
                                               "properties",
                                               "additionalProperties",
                                               "items",
                                               "description",
                                               "minimum",
                                               "maximum"};
  if (schema.contains("$ref")) {
    std::string pointer = schema.at("$ref").get<std::string>().substr(1);
    return schema_misfit(document, document.at(Json::json_pointer(pointer)), value);
  }
  for (const auto& [keyword, content] : schema.items())
    if (!kKnown.contains(keyword)) return ": unknown keyword " + keyword;
  if (schema.contains("type") && !fits_type(schema.at("type"), value))
    return ": is " + value.dump() + ", not " + schema.at("type").dump();
  if (schema.contains("enum")) {
    const Json& allowed = schema.at("enum");
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      return ": is " + value.dump() + ", none of " + allowed.dump();
  }
  if (value.is_object()) return object_misfit(document, schema, value);
  if (!value.is_array() || !schema.contains("items")) return "";
  for (size_t i = 0; i < value.size(); ++i) {
    std::string misfit = schema_misfit(document, schema.at("items"), value.at(i));
    if (!misfit.empty()) return "[" + std::to_string(i) + "]" + misfit;
  }
  return "";
}

}  // namespace llm_dist::server
