#include "launch/engine_bench.h"

#include <algorithm>

#include "launch/local_text.h"
#include "launch/random_lengths.h"

namespace llm_dist::launch {

EngineBench::EngineBench(const LoadFlags& flags, RankProcess& process, int64_t num_tokens)
    : flags_(flags),
      progress_(flags.progress_file, num_tokens),
      process_(process),
      engine_(engine::Engine::start(process.engine(),
                                    process.channel(),
                                    {.max_queued_requests = 1 << 16},
                                    process.hooks(),
                                    [this](const Status& cause) { process_.give_up(cause); })) {}

Result<Sample> EngineBench::run(int count, int output_len) {
  std::vector<std::shared_ptr<LocalSequence>> sequences;
  std::vector<sched::SequenceRequest> requests;
  requests.reserve(static_cast<size_t>(count));
  sequences.reserve(static_cast<size_t>(count));
  RandomLengths lengths(flags_.input_len, flags_.range_ratio, count);
  std::vector<size_t> input_lens;
  for (int i = 0; i < count; ++i) {
    requests.push_back(random_request(lengths.next(random_), output_len));
    input_lens.push_back(requests.back().prompt.size());
  }
  int64_t begin = now_ns();
  for (sched::SequenceRequest& request : requests) {
    sequences.push_back(std::make_shared<LocalSequence>([this](int32_t) { progress_.add(); }));
    RETURN_IF_ERROR(engine_->submit(std::move(request), sequences.back()).status());
  }
  Sample sample{.input_lens = std::move(input_lens)};
  int64_t last_first = begin;
  int64_t last = begin;
  std::vector<std::vector<int64_t>> all_times;
  for (const auto& sequence : sequences) {
    RETURN_IF_ERROR(sequence->wait());
    std::vector<int64_t> times = sequence->token_times_ns();
    if (static_cast<int>(times.size()) != output_len) {
      return internal_error(format("a sequence ended after {} of {} tokens", times.size(), output_len));
    }
    last_first = std::max(last_first, times.front());
    last = std::max(last, times.back());
    sample.output_tokens += static_cast<int64_t>(times.size());
    all_times.push_back(std::move(times));
  }
  sample.seconds = static_cast<double>(last - begin) * 1e-9;
  sample.first_token_seconds = static_cast<double>(last_first - begin) * 1e-9;
  sample.decode = decode_window(all_times);
  return sample;
}

sched::SequenceRequest EngineBench::random_request(int input_len, int output_len) {
  auto vocab = static_cast<int32_t>(process_.checkpoint().config().vocab_size);
  std::uniform_int_distribution<int32_t> token(0, vocab - 1);
  sched::SequenceRequest request;
  for (int i = 0; i < input_len; ++i) request.prompt.push_back(token(random_));
  apply_draw_flags(flags_.draw, request.sampling);
  request.sampling.max_tokens = output_len;
  request.sampling.ignore_eos = true;
  request.arrival = Clock::now();
  return request;
}

}  // namespace llm_dist::launch
