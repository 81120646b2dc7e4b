#include "src/sched/step_plan.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace llm_dist::sched {
namespace {

constexpr uint32_t kMagic = 0x5044534c;  // "LSDP"

// The encoded plan: this header, then the seven arrays without gaps.
struct Header {
  uint32_t magic = kMagic;
  uint32_t version = StepPlan::kVersion;
  uint64_t step = 0;
  uint64_t needs_tokens_of = 0;
  uint64_t mirror_checksum = 0;
  uint32_t shutdown = 0;
  uint32_t num_ended_slots = 0;
  uint32_t num_starts = 0;
  uint32_t num_runs = 0;
  uint32_t num_tokens = 0;
  uint32_t num_end_tokens = 0;
  uint32_t num_blocks = 0;
  uint32_t num_rule_words = 0;
};
static_assert(std::has_unique_object_representations_v<Header>);

Header header_of(const StepPlan& plan) {
  return {.step = plan.step,
          .needs_tokens_of = plan.needs_tokens_of,
          .mirror_checksum = plan.mirror_checksum,
          .shutdown = plan.shutdown ? 1u : 0u,
          .num_ended_slots = static_cast<uint32_t>(plan.ended_slots.size()),
          .num_starts = static_cast<uint32_t>(plan.starts.size()),
          .num_runs = static_cast<uint32_t>(plan.runs.size()),
          .num_tokens = static_cast<uint32_t>(plan.tokens.size()),
          .num_end_tokens = static_cast<uint32_t>(plan.end_tokens.size()),
          .num_blocks = static_cast<uint32_t>(plan.blocks.size()),
          .num_rule_words = static_cast<uint32_t>(plan.rule_words.size())};
}

uint64_t encoded_size(const Header& header) {
  const uint64_t words = uint64_t{header.num_ended_slots} + header.num_tokens + header.num_end_tokens +
                         header.num_rule_words + header.num_blocks;
  return sizeof(Header) + words * sizeof(int32_t) + header.num_starts * uint64_t{sizeof(SlotStart)} +
         header.num_runs * uint64_t{sizeof(SlotRun)};
}

template <typename T>
std::byte* put(std::byte* at, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (values.empty()) return at;
  std::memcpy(at, values.data(), values.size() * sizeof(T));
  return at + values.size() * sizeof(T);
}

template <typename T>
const std::byte* take(const std::byte* at, uint32_t count, std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  values.resize(count);
  if (count == 0) return at;
  std::memcpy(values.data(), at, count * sizeof(T));
  return at + count * sizeof(T);
}

// The sum of one field, or -1 when a value is negative.
template <typename T>
int64_t sum_of(const std::vector<T>& values, int32_t T::* field) {
  int64_t sum = 0;
  for (const T& value : values) {
    if (value.*field < 0) return -1;
    sum += value.*field;
  }
  return sum;
}

Status check_sum(const char* what, int64_t announced, size_t present) {
  if (announced == static_cast<int64_t>(present)) return ok_status();
  return data_loss(format("step plan: {} {} announced, {} present", announced, what, present));
}

}  // namespace

void StepPlan::clear() {
  step = 0;
  needs_tokens_of = 0;
  mirror_checksum = 0;
  shutdown = false;
  ended_slots.clear();
  starts.clear();
  runs.clear();
  tokens.clear();
  end_tokens.clear();
  rule_words.clear();
  blocks.clear();
}

int64_t StepPlan::num_tokens() const { return sum_of(runs, &SlotRun::count); }

int64_t StepPlan::num_samples() const {
  return sum_of(runs, &SlotRun::samples) + sum_of(runs, &SlotRun::num_scores);
}

bool StepPlan::decode_only() const {
  return std::all_of(runs.begin(), runs.end(), [](const SlotRun& run) { return run.count == 1; });
}

Status check_counts(const StepPlan& plan) {
  RETURN_IF_ERROR(check_sum("tokens", sum_of(plan.starts, &SlotStart::num_tokens), plan.tokens.size()));
  RETURN_IF_ERROR(
      check_sum("end tokens", sum_of(plan.starts, &SlotStart::num_end_tokens), plan.end_tokens.size()));
  int64_t num_rule_words = 0;
  for (const SlotStart& start : plan.starts) {
    if (start.rules.num_words < 0) return data_loss("step plan: a negative number of rule words");
    num_rule_words += start.rules.num_words;
  }
  RETURN_IF_ERROR(check_sum("rule words", num_rule_words, plan.rule_words.size()));
  return check_sum("blocks", sum_of(plan.runs, &SlotRun::num_new_blocks), plan.blocks.size());
}

void encode(const StepPlan& plan, std::vector<std::byte>& out) {
  const Header header = header_of(plan);
  out.resize(encoded_size(header));
  std::memcpy(out.data(), &header, sizeof(header));
  std::byte* at = out.data() + sizeof(header);
  at = put(at, plan.ended_slots);
  at = put(at, plan.starts);
  at = put(at, plan.runs);
  at = put(at, plan.tokens);
  at = put(at, plan.end_tokens);
  at = put(at, plan.rule_words);
  at = put(at, plan.blocks);
  CHECK(at == out.data() + out.size());
}

Status decode(std::span<const std::byte> bytes, StepPlan& plan) {
  Header header;
  if (bytes.size() < sizeof(header))
    return data_loss(format("step plan: {} bytes are too few", bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return data_loss("step plan: these bytes are none");
  if (header.version != StepPlan::kVersion) {
    return data_loss(
        format("step plan: version {}, this program reads {}", header.version, StepPlan::kVersion));
  }
  if (header.shutdown > 1 || encoded_size(header) != bytes.size()) {
    return data_loss(
        format("step plan: header announces {} bytes, {} present", encoded_size(header), bytes.size()));
  }
  plan.step = header.step;
  plan.needs_tokens_of = header.needs_tokens_of;
  plan.mirror_checksum = header.mirror_checksum;
  plan.shutdown = header.shutdown == 1;
  const std::byte* at = bytes.data() + sizeof(header);
  at = take(at, header.num_ended_slots, plan.ended_slots);
  at = take(at, header.num_starts, plan.starts);
  at = take(at, header.num_runs, plan.runs);
  at = take(at, header.num_tokens, plan.tokens);
  at = take(at, header.num_end_tokens, plan.end_tokens);
  at = take(at, header.num_rule_words, plan.rule_words);
  take(at, header.num_blocks, plan.blocks);
  return check_counts(plan);
}

}  // namespace llm_dist::sched
