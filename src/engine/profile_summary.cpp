#include "src/engine/profile_summary.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace llm_dist::engine {
namespace {

double us(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

// Decodes by sequences, others by the power of two that their tokens reach.
using Kind = std::pair<bool, uint64_t>;
Kind kind_of(const ProfiledStep& step) {
  if (step.decode_only) return {true, static_cast<uint64_t>(step.sequences)};
  return {false, std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, step.tokens)))};
}

struct Group {
  std::vector<const ProfiledStep*> steps;
  std::vector<double> between;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<const ProfiledStep*> middle_half(std::vector<const ProfiledStep*> steps) {
  std::sort(steps.begin(), steps.end(), [](const ProfiledStep* a, const ProfiledStep* b) {
    return a->end_ns - a->begin_ns < b->end_ns - b->begin_ns;
  });
  size_t quarter = steps.size() / 4;
  return {steps.begin() + static_cast<ptrdiff_t>(quarter), steps.end() - static_cast<ptrdiff_t>(quarter)};
}

void add_up(ProfileTable& table, const std::vector<const ProfiledStep*>& steps) {
  std::map<std::string, ProfileRow> rows;
  double share = 1.0 / static_cast<double>(steps.size());
  for (const ProfiledStep* step : steps) {
    table.step_us += us(step->end_ns - step->begin_ns) * share;
    for (const ProfiledOp& op : step->ops) {
      ProfileRow& row = rows[op.name];
      row.name = op.name;
      row.kind = op.kind;
      row.calls += share;
      row.us += us(op.end_ns - op.begin_ns) * share;
    }
  }
  table.gaps_us = table.step_us;
  table.rows.reserve(rows.size());
  for (auto& [name, row] : rows) {
    table.gaps_us -= row.us;
    table.rows.push_back(row);
  }
  // Sums of rounded numbers: nothing overlaps, so less than zero is zero.
  table.gaps_us = std::max(0.0, table.gaps_us);
  std::sort(table.rows.begin(), table.rows.end(), [](const ProfileRow& a, const ProfileRow& b) {
    return std::tie(b.us, a.name) < std::tie(a.us, b.name);
  });
}

ProfileTable table_of(const Kind& kind, const Group& group) {
  auto by_tokens = [](const ProfiledStep* a, const ProfiledStep* b) { return a->tokens < b->tokens; };
  auto [least, most] = std::minmax_element(group.steps.begin(), group.steps.end(), by_tokens);
  std::vector<const ProfiledStep*> counted = middle_half(group.steps);
  ProfileTable table{.decode_only = kind.first,
                     .sequences = kind.first ? static_cast<int64_t>(kind.second) : 0,
                     .min_tokens = (*least)->tokens,
                     .max_tokens = (*most)->tokens,
                     .num_steps = static_cast<int64_t>(group.steps.size()),
                     .num_counted = static_cast<int64_t>(counted.size()),
                     .between_us = median(group.between),
                     .rows = {}};
  add_up(table, counted);
  return table;
}

}  // namespace

double ProfileTable::us_of(kernels::CallKind kind) const {
  double sum = 0;
  for (const ProfileRow& row : rows) sum += row.kind == kind ? row.us : 0;
  return sum;
}

std::string ProfileTable::label() const {
  if (decode_only) return format("decode, batch {}", sequences);
  if (min_tokens == max_tokens) return format("prompt, {} tokens", min_tokens);
  return format("prompt, {} to {} tokens", min_tokens, max_tokens);
}

std::vector<ProfileTable> summarize(std::span<const ProfiledStep> steps) {
  std::map<Kind, Group> groups;
  for (size_t i = 0; i < steps.size(); ++i) {
    Kind kind = kind_of(steps[i]);
    groups[kind].steps.push_back(&steps[i]);
    if (i + 1 == steps.size() || steps[i + 1].step != steps[i].step + 1 || kind_of(steps[i + 1]) != kind)
      continue;
    groups[kind].between.push_back(us(steps[i + 1].begin_ns - steps[i].end_ns));
  }
  std::vector<ProfileTable> tables;
  tables.reserve(groups.size());
  for (const auto& [kind, group] : groups) tables.push_back(table_of(kind, group));
  return tables;
}

}  // namespace llm_dist::engine
