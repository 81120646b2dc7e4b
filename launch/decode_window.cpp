#include "launch/decode_window.h"

#include <algorithm>
#include <limits>

namespace llm_dist::launch {

DecodeWindow decode_window(const std::vector<std::vector<int64_t>>& token_times_ns) {
  const std::vector<int64_t>* last = nullptr;  // to begin
  int64_t first_end = std::numeric_limits<int64_t>::max();
  for (const std::vector<int64_t>& times : token_times_ns) {
    if (last == nullptr || times.front() > last->front()) last = &times;
    first_end = std::min(first_end, times.back());
  }
  DecodeWindow window;
  if (last == nullptr) return window;
  const int64_t begin = last->front();
  auto count_until = [](const std::vector<int64_t>& times, int64_t when) {
    return std::upper_bound(times.begin(), times.end(), when) - times.begin();
  };
  window.steps = std::max(0, static_cast<int>(count_until(*last, first_end)) - 1);
  window.seconds = static_cast<double>((*last)[static_cast<size_t>(window.steps)] - begin) * 1e-9;
  double before = 0;
  for (const std::vector<int64_t>& times : token_times_ns)
    before += static_cast<double>(count_until(times, begin));
  window.tokens_generated = before / static_cast<double>(token_times_ns.size()) + 0.5 * window.steps;
  return window;
}

int tokens_for_window(int batch, int input_len, int output_len, int64_t max_num_batched_tokens) {
  // Most of the batch decodes already while the last prompts are read.
  const int64_t prompt_tokens = std::max<int64_t>(1, max_num_batched_tokens - batch);
  const int64_t prompt_steps = (int64_t{batch} * input_len + prompt_tokens - 1) / prompt_tokens;
  return output_len + static_cast<int>(std::max<int64_t>(0, prompt_steps - output_len / 2));
}

}  // namespace llm_dist::launch
