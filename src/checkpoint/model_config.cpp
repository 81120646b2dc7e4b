#include "src/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace llm_dist::checkpoint {
namespace {

struct Range {
  const char* field;
  int64_t value;
  int64_t min;
  int64_t max;
};

Status check_ranges(std::initializer_list<Range> ranges, std::string_view origin) {
  for (const Range& range : ranges)
    if (range.value < range.min || range.value > range.max)
      return invalid_argument(
          format("{}: {} = {} is outside [{}, {}]", origin, range.field, range.value, range.min, range.max));
  return ok_status();
}

// Also false for NaN.
bool positive_and_sane(double value) { return value > 0.0 && value < 1e30; }

Status check_rope(const ModelConfig& config, std::string_view origin) {
  const RopeConfig& rope = config.rope;
  if (!positive_and_sane(rope.theta))
    return invalid_argument(format("{}: rope_theta = {} is not a positive number", origin, rope.theta));
  if (!positive_and_sane(rope.factor))
    return invalid_argument(
        format("{}: rope_scaling.factor = {} is not a positive number", origin, rope.factor));
  if (!rope.frequency_factors.empty()) {
    if (static_cast<int64_t>(rope.frequency_factors.size()) != config.head_dim / 2)
      return invalid_argument(format("{}: {} rope frequency factors for head_dim {}",
                                     origin,
                                     rope.frequency_factors.size(),
                                     config.head_dim));
    if (!std::all_of(rope.frequency_factors.begin(), rope.frequency_factors.end(), positive_and_sane))
      return invalid_argument(format("{}: a rope frequency factor is not a positive number", origin));
  }
  if (rope.scaling != RopeScaling::kLlama3) return ok_status();
  if (!positive_and_sane(rope.low_freq_factor) || !(rope.high_freq_factor > rope.low_freq_factor))
    return invalid_argument(
        format("{}: rope_scaling wants 0 < low_freq_factor < high_freq_factor, has {} and {}",
               origin,
               rope.low_freq_factor,
               rope.high_freq_factor));
  return check_ranges({{"rope_scaling.original_max_position_embeddings",
                        rope.original_max_position_embeddings,
                        1,
                        int64_t{1} << 31}},
                      origin);
}

Status check_ids(const ModelConfig& config, std::string_view origin) {
  if (config.bos_id)
    RETURN_IF_ERROR(check_ranges({{"bos_token_id", *config.bos_id, 0, config.vocab_size - 1}}, origin));
  for (int32_t id : config.eos_ids)
    RETURN_IF_ERROR(check_ranges({{"eos_token_id", id, 0, config.vocab_size - 1}}, origin));
  return ok_status();
}

}  // namespace

std::string_view to_string(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kLlama3: return "llama3";
  }
  return "?";
}

Status validate(const ModelConfig& config, std::string_view origin) {
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  RETURN_IF_ERROR(
      check_ranges({{"hidden_size", config.hidden_size, 1, kMaxWidth},
                    {"num_hidden_layers", config.num_layers, 1, 65536},
                    {"num_attention_heads", config.num_heads, 1, 65536},
                    {"num_key_value_heads", config.num_kv_heads, 1, 65536},
                    {"head_dim", config.head_dim, 2, 65536},
                    {"intermediate_size", config.intermediate_size, 1, kMaxWidth},
                    {"vocab_size", config.vocab_size, 1, int64_t{1} << 28},
                    {"max_position_embeddings", config.max_position_embeddings, 1, int64_t{1} << 31}},
                   origin));
  if (config.head_dim % 2 != 0)
    return invalid_argument(
        format("{}: head_dim = {} is odd, rotary embedding wants pairs", origin, config.head_dim));
  if (config.num_heads % config.num_kv_heads != 0)
    return invalid_argument(format("{}: num_attention_heads = {} is no multiple of num_key_value_heads = {}",
                                   origin,
                                   config.num_heads,
                                   config.num_kv_heads));
  if (!(config.rms_norm_eps >= 0.0 && config.rms_norm_eps < 1.0))
    return invalid_argument(format("{}: rms_norm_eps = {} is outside [0, 1)", origin, config.rms_norm_eps));
  RETURN_IF_ERROR(check_ids(config, origin));
  return check_rope(config, origin);
}

int64_t longest_context(const ModelConfig& config) {
  if (config.rope.scaling != RopeScaling::kLinear || config.rope.factor <= 1.0)
    return config.max_position_embeddings;
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int64_t>(
      std::min(kMost, static_cast<double>(config.max_position_embeddings) * config.rope.factor));
}

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (rope.scaling == RopeScaling::kLinear) frequency /= rope.factor;
    if (!rope.frequency_factors.empty()) {
      frequency /= static_cast<double>(rope.frequency_factors[i]);
    } else if (rope.scaling == RopeScaling::kLlama3) {
      double turns =
          static_cast<double>(rope.original_max_position_embeddings) * frequency / (2.0 * std::numbers::pi);
      double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      smooth = std::clamp(smooth, 0.0, 1.0);
      frequency *= smooth + (1.0 - smooth) / rope.factor;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

void add_unique(std::vector<int32_t>& ids, int32_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

}  // namespace llm_dist::checkpoint
