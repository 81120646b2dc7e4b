#include "launch/sampling_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace llm_dist::launch {
namespace {

std::string check_share(const std::string& text) {
  const double share = std::strtod(text.c_str(), nullptr);
  return share > 0 && share <= 1 ? "" : text + " is not above 0 and at most 1";
}

}  // namespace

void add_draw_flags(CLI::App& app, DrawFlags& flags) {
  app.add_option("--temperature", flags.temperature, "0: greedy")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--top-p", flags.top_p)->check(check_share)->capture_default_str();
  app.add_option("--top-k", flags.top_k, "0: off")->check(CLI::NonNegativeNumber)->capture_default_str();
}

void apply_draw_flags(const DrawFlags& flags, sched::SamplingParams& sampling) {
  sampling.temperature = static_cast<float>(flags.temperature);
  sampling.top_p = static_cast<float>(flags.top_p);
  sampling.top_k = flags.top_k;
}

CLI::Option* add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  CLI::Option* max_tokens =
      app.add_option("--max-tokens", flags.max_tokens)->check(CLI::PositiveNumber)->capture_default_str();
  add_draw_flags(app, flags.draw);
  app.add_option("--seed", flags.seed)->capture_default_str();
  return max_tokens;
}

sched::SamplingParams sampling_of(const SamplingFlags& flags, std::vector<int32_t> end_token_ids) {
  sched::SamplingParams sampling;
  apply_draw_flags(flags.draw, sampling);
  sampling.seed = flags.seed;
  sampling.max_tokens = flags.max_tokens;
  sampling.end_token_ids = std::move(end_token_ids);
  return sampling;
}

}  // namespace llm_dist::launch
