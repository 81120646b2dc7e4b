#include "launch/profile_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

using engine::ProfileRow;
using engine::ProfileTable;
using kernels::CallKind;
using nlohmann::json;

json row_of(const ProfileRow& row, double step_us) {
  return {{"name", row.name},
          {"kind", category_of(row.kind)},
          {"calls", row.calls},
          {"us", row.us},
          {"share", row.us / step_us}};
}

json table_json(const ProfileTable& table) {
  json rows = json::array();
  for (const ProfileRow& row : table.rows) rows.push_back(row_of(row, table.step_us));
  return {{"label", table.label()},
          {"decode", table.decode_only},
          {"batch", table.sequences},
          {"min_tokens", table.min_tokens},
          {"max_tokens", table.max_tokens},
          {"num_steps", table.num_steps},
          {"num_counted", table.num_counted},
          {"step_us", table.step_us},
          {"ops_us", table.us_of(CallKind::kOp)},
          {"collectives_us", table.us_of(CallKind::kCollective)},
          {"copies_us", table.us_of(CallKind::kCopy)},
          {"waits_us", table.us_of(CallKind::kWait)},
          {"gaps_us", table.gaps_us},
          {"gaps_share", table.gaps_us / table.step_us},
          {"between_steps_us", table.between_us},
          {"rows", rows}};
}

template <typename... Args>
std::string printed(const char* pattern, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

std::string line_of(const std::string& name, const std::string& calls, double us, double each, double step) {
  std::string per_call = each > 0 ? printed("%9.1f", each) : std::string(9, ' ');
  return printed(
      "  %-24s %6s %11.1f %s %6.1f %%\n", name.c_str(), calls.c_str(), us, per_call.c_str(), 100 * us / step);
}

// "ops 81 %, collectives 12 %, …", what there is.
std::string division_of(const json& table) {
  std::string text;
  auto step = table["step_us"].get<double>();
  for (auto [key, name] : {std::pair{"ops_us", "ops"},
                           {"collectives_us", "collectives"},
                           {"copies_us", "copies"},
                           {"waits_us", "waits"},
                           {"gaps_us", "gaps"}}) {
    auto us = table[key].get<double>();
    if (us > 0) text += printed("%s%s %.1f %%", text.empty() ? "" : ", ", name, 100 * us / step);
  }
  return text;
}

std::string describe_table(const json& table) {
  auto step = table["step_us"].get<double>();
  std::string text = format("\n{}: the middle half of {} steps\n",
                            table["label"].get<std::string>(),
                            table["num_steps"].get<int64_t>());
  text += "  op                        calls   us a step   us each    share\n";
  for (const json& row : table["rows"]) {
    auto calls = row["calls"].get<double>();
    auto us = row["us"].get<double>();
    text += line_of(row["name"].get<std::string>(), printed("%.4g", calls), us, us / calls, step);
  }
  text += line_of("gaps", "", table["gaps_us"].get<double>(), 0, step);
  text += line_of("step", "", step, 0, step);
  text += "  " + division_of(table) +
          printed("; %.1f us from a step to the next of its kind\n", table["between_steps_us"].get<double>());
  return text;
}

std::string describe_others(const std::vector<json>& ranks, const std::string& label) {
  std::string text;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    for (const json& table : ranks[rank]["tables"]) {
      if (table["label"] != label) continue;
      text += printed("  rank %zu: step %.1f us: ", rank, table["step_us"].get<double>());
      text += division_of(table) + "\n";
    }
  }
  return text;
}

std::vector<json> parsed(std::span<const std::string> packed) {
  std::vector<json> ranks;
  ranks.reserve(packed.size());
  for (const std::string& one : packed) ranks.push_back(json::parse(one));
  return ranks;
}

}  // namespace

std::string pack_profile(std::span<const engine::ProfiledStep> steps, const ProfileNotes& notes) {
  json tables = json::array();
  for (const ProfileTable& table : engine::summarize(steps)) tables.push_back(table_json(table));
  return json{{"tables", tables},
              {"timestamp_us", notes.timestamp_seconds * 1e6},
              {"eager_instead_of_graphs", notes.graphs_dropped}}
      .dump();
}

std::vector<engine::ProfiledStep> shown_steps(std::span<const engine::ProfiledStep> steps) {
  constexpr int kShownOfAKind = 8;
  std::map<std::pair<bool, int64_t>, int> seen;
  std::vector<engine::ProfiledStep> shown;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (++seen[{step->decode_only, step->tokens}] <= kShownOfAKind) shown.push_back(*step);
  }
  std::reverse(shown.begin(), shown.end());
  return shown;
}

std::string merge_profiles(std::span<const std::string> packed) {
  return json{{"rank_profiles", parsed(packed)}}.dump();
}

std::string describe_profiles(std::span<const std::string> packed) {
  std::vector<json> ranks = parsed(packed);
  const json& first = ranks.front();
  std::string text = "\nprofile of rank 0: device time by timestamps on its compute stream\n";
  for (const json& table : first["tables"])
    text += describe_table(table) + describe_others(ranks, table["label"].get<std::string>());
  text += printed("\nA timestamp takes %.2f us; each op is between two, each gap holds a part of them.\n",
                  first["timestamp_us"].get<double>());
  if (first["eager_instead_of_graphs"].get<bool>())
    text +=
        "Steps were issued op by op for the profile, not replayed as graphs: the gaps are those of eager "
        "steps.\n";
  return text;
}

}  // namespace llm_dist::launch
