#include "launch/decode_window.h"

#include <algorithm>
#include <cstddef>

namespace llm_dist::launch {

namespace {

// Half of the median time between two tokens: what is nearer belongs to the same step.
int64_t half_of_a_step(const std::vector<int64_t>& times) {
  if (times.size() < 2) return 0;
  std::vector<int64_t> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  return *middle / 2;
}

}  // namespace

DecodeWindow decode_window(const std::vector<std::vector<int64_t>>& token_times_ns) {
  DecodeWindow window;
  if (token_times_ns.empty()) return window;
  const std::vector<int64_t>& last = *std::max_element(  // to begin
      token_times_ns.begin(),
      token_times_ns.end(),
      [](const auto& a, const auto& b) { return a.front() < b.front(); });
  const int64_t begun = last.front() + half_of_a_step(last);
  auto steps = static_cast<std::ptrdiff_t>(last.size()) - 1;
  double before = 0;
  for (const std::vector<int64_t>& times : token_times_ns) {
    const auto first_behind = std::upper_bound(times.begin(), times.end(), begun);
    steps = std::min(steps, times.end() - first_behind);
    before += static_cast<double>(first_behind - times.begin());
  }
  window.steps = static_cast<int>(steps);
  window.seconds = static_cast<double>(last[static_cast<size_t>(steps)] - last.front()) * 1e-9;
  window.tokens_generated = before / static_cast<double>(token_times_ns.size()) + 0.5 * window.steps;
  return window;
}

int tokens_for_window(
    int batch, int input_len, int output_len, int64_t max_num_batched_tokens, bool chunked) {
  if (batch == 1) return output_len;
  // Most of the batch decodes already while the last prompts are read.
  const int64_t prompt_tokens = std::max<int64_t>(1, max_num_batched_tokens - batch);
  auto steps_of = [](int64_t work, int64_t of_a_step) { return (work + of_a_step - 1) / of_a_step; };
  const int64_t prompt_steps = chunked ? steps_of(int64_t{batch} * input_len, prompt_tokens)
                                       : steps_of(batch, std::max<int64_t>(1, prompt_tokens / input_len));
  // The first steps begin before all of the batch has been submitted.
  constexpr int64_t kStepsAhead = 2;
  return output_len + static_cast<int>(std::max<int64_t>(0, kStepsAhead + prompt_steps - output_len / 2));
}

}  // namespace llm_dist::launch
