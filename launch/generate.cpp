// `llm-dist generate`: one prompt, its continuation streamed to the terminal.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "launch/batch_generate.h"
#include "launch/commands.h"
#include "launch/local_text.h"
#include "launch/rank_process.h"
#include "launch/sampling_flags.h"
#include "launch/text_model.h"
#include "src/base/log.h"
#include "src/text/detokenizer.h"

namespace llm_dist::launch {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  BatchFlags batch;
  std::string prompt;
  SamplingFlags sampling;
  bool chat = false;
  bool ignore_eos = false;
};

Result<std::string> prompt_text(const GenerateFlags& flags, const TextModel& text) {
  std::string prompt = flags.prompt;
  if (prompt.empty() || prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (!flags.chat) return prompt;
  if (!text::is_valid_utf8(prompt)) return invalid_argument("the prompt is not UTF-8");
  if (!text.chat_template) return invalid_argument("the model has no chat template: leave out --chat");
  nlohmann::json messages = nlohmann::json::array({{{"role", "user"}, {"content", prompt}}});
  return text.chat_template->render(messages.dump());
}

constexpr int kIncompleteExitCode = 75;  // EX_TEMPFAIL: run it again

sched::SamplingParams sampling_of(const GenerateFlags& flags, const TextModel& text) {
  std::vector<int32_t> end_tokens;
  if (!flags.ignore_eos) end_tokens = text.eos_ids;
  sched::SamplingParams sampling = sampling_of(flags.sampling, std::move(end_tokens));
  sampling.ignore_eos = flags.ignore_eos;
  return sampling;
}

Status generate(const GenerateFlags& flags, RankProcess& process) {
  const TextModel text = process.take_text();
  ASSIGN_OR_RETURN(std::string prompt, prompt_text(flags, text));
  sched::SequenceRequest request;
  ASSIGN_OR_RETURN(request.prompt, text.tokenizer->encode(prompt, {.add_special_tokens = !flags.chat}));
  request.sampling = sampling_of(flags, text);
  request.arrival = Clock::now();
  size_t prompt_tokens = request.prompt.size();
  const int64_t room = process.engine().options().max_model_len - static_cast<int64_t>(prompt_tokens);
  if (request.sampling.max_tokens > room && room > 0)
    log_warning("--max-tokens {}: behind a prompt of {} tokens --max-model-len {} leaves room for {}",
                request.sampling.max_tokens,
                prompt_tokens,
                process.engine().options().max_model_len,
                room);

  text::Detokenizer detokenizer(*text.tokenizer, true);
  auto print = [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  auto sequence = std::make_shared<LocalSequence>([&](int32_t token) { print(detokenizer.push(token)); });
  auto engine = engine::Engine::start(
      process.engine(), process.channel(), {}, process.hooks(), [&](const Status& cause) {
        process.give_up(cause);
      });
  TimePoint begin = Clock::now();
  RETURN_IF_ERROR(engine->submit(std::move(request), sequence).status());
  RETURN_IF_ERROR(sequence->wait());
  engine->stop();
  print(detokenizer.flush() + "\n");

  std::vector<int64_t> times = sequence->token_times_ns();
  if (times.size() > 1) {
    int64_t begin_ns = now_ns() - static_cast<int64_t>(seconds_between(begin, Clock::now()) * 1e9);
    std::fprintf(
        stderr,
        "%zu prompt tokens; first token after %.0f ms; %zu tokens at %.1f tokens/s\n",
        prompt_tokens,
        static_cast<double>(times.front() - begin_ns) * 1e-6,
        times.size(),
        static_cast<double>(times.size() - 1) / (static_cast<double>(times.back() - times.front()) * 1e-9));
  }
  return ok_status();
}

int run_prompt(const GenerateFlags& flags) {
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status = process.load_with_text(flags.engine);
  if (status.ok()) status = process.leads() ? generate(flags, process) : process.follow();
  return end(process, status);
}

std::string what_is_left(const BatchResult& result) {
  if (result.complete) return "";
  const std::string left = result.left > 0 ? format("; {} left", result.left) : "; interrupted";
  return left + ": run it again to go on";
}

int run_batch(const GenerateFlags& flags) {
  ShutdownSignal signal;  // before any thread is started, so that every thread inherits its mask
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  if (process.leads()) {
    signal.set_farewell([&](const std::string& why, int number) { process.announce_end(why, number); });
  } else {
    signal.ignore();
  }
  std::optional<BatchFiles> files;
  auto open_mine = [&]() -> Status {
    if (!process.leads()) return ok_status();
    ASSIGN_OR_RETURN(files, open_batch_files(flags.batch));
    return ok_status();
  };
  Status status = process.agree(open_mine());
  if (status.ok()) status = process.load_with_text(flags.engine);
  BatchResult result;
  if (status.ok() && process.leads()) {
    TextModel text = process.take_text();
    const sched::SamplingParams defaults = sampling_of(flags, text);
    auto batch = generate_batch(flags.batch, defaults, std::move(text), std::move(*files), process, signal);
    status = batch.status();
    if (batch.ok()) result = *batch;
  } else if (status.ok()) {
    status = process.follow();
  }
  if (status.ok() && process.leads())
    std::fprintf(stderr,
                 "%zu lines answered (%zu of them refused), %zu before%s\n",
                 result.done,
                 result.refused,
                 result.before,
                 what_is_left(result).c_str());
  int code = end(process, status, &signal);
  return code == 0 && !result.complete ? kIncompleteExitCode : code;
}

int run(const GenerateFlags& flags) {
  if (flags.batch.input_file.empty()) return run_prompt(flags);
  return run_batch(flags);
}

}  // namespace

RunCommand add_generate(CLI::App& program) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* app = program.add_subcommand("generate", "Continue a prompt and stream the text to the terminal");
  add_engine_flags(*app, flags->engine);
  auto* prompt =
      app->add_option("--prompt", flags->prompt, "The text to continue (- or nothing: standard input)");
  auto* input = app->add_option("--input-file",
                                flags->batch.input_file,
                                "A JSON object a line, with prompt or messages: answer them all");
  auto* output = app->add_option("--output-file",
                                 flags->batch.output_file,
                                 "Where the answers go; lines that it holds are not done again");
  input->needs(output)->excludes(prompt)->check(CLI::ExistingFile);
  output->needs(input);
  app->add_option("--shutdown-timeout",
                  flags->batch.shutdown_timeout_seconds,
                  "Seconds that running lines get when a signal ends the batch")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_flag("--chat", flags->chat, "Put the prompt through the model's chat template")->excludes(input);
  add_sampling_flags(*app, flags->sampling);
  app->add_flag("--ignore-eos", flags->ignore_eos, "Go on to --max-tokens");
  app->footer(
      "Examples:\n"
      "  llm-dist generate model.gguf --chat --prompt 'What is the capital of France?'\n"
      "  mpirun -np 4 llm-dist generate path/to/model --tp 2 --pp 2 --prompt 'Once upon a time'\n"
      "  llm-dist generate model.gguf --input-file prompts.jsonl --output-file answers.jsonl");
  return [flags] { return in_ranks(flags->engine.launch, [&] { return run(*flags); }); };
}

}  // namespace llm_dist::launch
