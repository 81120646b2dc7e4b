// The fields that requests may have, as one table: who takes them, what they may hold, whether they are
// served.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace llm_dist::server {

enum class Endpoint : uint8_t { kChat = 1, kCompletions = 2, kTokenize = 4, kDetokenize = 8 };
std::string_view path_of(Endpoint endpoint);

enum FieldType : uint8_t {
  kBoolean = 1,
  kInteger = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
};

struct Field {
  std::string_view name;
  uint8_t endpoints = 0;  // of Endpoint
  uint8_t types = 0;      // of FieldType; null is always accepted and means "absent"
  double min = 0;         // of numbers, when min <= max
  double max = -1;
  // A field that is known and not served is refused unless its value is null or in this JSON array: values
  // that ask for what happens anyway.
  std::string_view neutral{};
  bool served = true;
};

std::span<const Field> request_fields();
// Null when that endpoint has no such field.
const Field* find_field(Endpoint endpoint, std::string_view name);
// What may have been meant by `name`, which the endpoint does not know, as the end of a message: a field of
// nearly that spelling, or the endpoint that has it. Empty where nothing is near.
std::string hint_for(Endpoint endpoint, std::string_view name);

}  // namespace llm_dist::server
