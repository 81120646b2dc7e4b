#include "src/server/prepare.h"

#include <algorithm>

#include "src/base/format.h"
#include "src/server/text_limit.h"

namespace llm_dist::server {
namespace {

using MaybeError = std::optional<ApiError>;

constexpr int64_t kCompletionMaxTokens = 16;  // OpenAI's default
// Log-probabilities of prompts in one reply, which is held whole: some 80 bytes each. The 20 likeliest of
// each of 128k tokens are less.
constexpr int64_t kMaxPromptLogprobs = 4 << 20;

// What src/text says of a request's own text. `param`: the field that holds it.
ApiError refused_text(const Status& status, const char* param) {
  ApiError error = from_status(status);
  if (error.status == 400) error.param = param;
  return error;
}

std::string above_limit(int64_t limit, const std::string& asked) {
  return format("this model's maximum context length is {} tokens; {}", limit, asked);
}

ApiError too_long(std::string message, const char* param) {
  return {.status = 400, .message = std::move(message), .param = param, .code = "context_length_exceeded"};
}

// `param`: the field that holds the ids, or the text that they are of.
MaybeError check_ids(const std::vector<int32_t>& ids, int64_t vocab_size, const char* param) {
  for (int32_t id : ids) {
    if (id < vocab_size) continue;
    return ApiError{
        .status = 400,
        .message = format("'{}': token id {} is outside the vocabulary of {}", param, id, vocab_size),
        .param = param};
  }
  return std::nullopt;
}

// Those of the model, whose embedding has no row for others.
MaybeError check_ids(const ServedModel& model, const std::vector<int32_t>& ids, const char* param) {
  return check_ids(ids, model.info.vocab_size, param);
}

// A text that cannot fit is not encoded first: that could take minutes, of a thread that others wait for.
MaybeError encode_prompt(const ServedModel& model,
                         const std::string& text,
                         bool add_special_tokens,
                         const char* param,
                         std::vector<int32_t>& ids) {
  int64_t fewest = model.tokenizer->fewest_tokens(text);
  if (fewest >= model.info.max_model_len) {
    const std::string asked = format(
        "the prompt of {} bytes has at least {} and leaves no room for an answer", text.size(), fewest);
    return too_long(above_limit(model.info.max_model_len, asked), param);
  }
  auto encoded = model.tokenizer->encode(text, {.add_special_tokens = add_special_tokens});
  if (!encoded.ok()) return refused_text(encoded.status(), param);
  ids = std::move(*encoded);
  return check_ids(model, ids, param);
}

// `param`: the field that the text is or was rendered from.
MaybeError encode_to_count(const ServedModel& model,
                           const std::string& text,
                           bool add_special_tokens,
                           const char* param,
                           std::vector<int32_t>& ids) {
  const int64_t most = most_text_bytes(model.info.max_model_len);
  if (static_cast<int64_t>(text.size()) > most) {
    return too_long(
        above_limit(model.info.max_model_len,
                    format("a text of {} bytes is not tokenized here, the most is {}", text.size(), most)),
        param);
  }
  auto encoded = model.tokenizer->encode(text, {.add_special_tokens = add_special_tokens});
  if (!encoded.ok()) return refused_text(encoded.status(), param);
  ids = std::move(*encoded);
  return std::nullopt;
}

MaybeError tokenize_prompt(const ServedModel& model,
                           const PromptInput& input,
                           bool echo,
                           PreparedPrompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) {
    if (auto error = check_ids(model, *ids, "prompt")) return error;
    prompt.ids = *ids;
    if (echo) prompt.echo = model.tokenizer->decode(*ids, true);
    return std::nullopt;
  }
  const auto& text = std::get<std::string>(input);
  if (auto error = encode_prompt(model, text, true, "prompt", prompt.ids)) return error;
  if (echo) prompt.echo = text;
  return std::nullopt;
}

MaybeError limit_tokens(const ServedModel& model, const GenerateSpec& spec, PreparedPrompt& prompt) {
  const char* param = spec.endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (prompt.ids.empty()) {
    return ApiError{.status = 400, .message = "the prompt has no tokens", .param = param};
  }
  auto num_prompt = static_cast<int64_t>(prompt.ids.size());
  int64_t room = model.info.max_model_len - num_prompt;
  if (room < 1 || (spec.max_tokens && *spec.max_tokens > room)) {
    // Where none are asked for there must be room for one all the same.
    const std::optional<int64_t> asked = spec.max_tokens == 0 ? std::nullopt : spec.max_tokens;
    return too_long(beyond_context(model.info.max_model_len, num_prompt, asked), param);
  }
  int64_t unasked = spec.endpoint == Endpoint::kChat ? room : kCompletionMaxTokens;
  unasked = std::min({unasked, room, model.info.defaults.max_tokens.value_or(room)});
  int64_t max_tokens = spec.max_tokens.value_or(std::max(unasked, std::min(spec.min_tokens, room)));
  if (spec.min_tokens > max_tokens) {
    return ApiError{
        .status = 400,
        .message = format(
            "'min_tokens' ({}) is more than the {} tokens there is room for", spec.min_tokens, max_tokens),
        .param = "min_tokens"};
  }
  prompt.max_tokens =
      static_cast<int32_t>(std::max<int64_t>(1, max_tokens));  // of an echo alone, one is dropped
  return std::nullopt;
}

// Each choice of a completion repeats those of its prompt; a chat's stand beside the choices.
MaybeError limit_prompt_logprobs(const GenerateSpec& spec, const std::vector<PreparedPrompt>& prompts) {
  const int64_t lists = spec.endpoint == Endpoint::kChat ? 1 : spec.n;
  const int64_t listed = lists * (spec.num_prompt_logprobs + 1);
  const int64_t echoed = spec.echoes_logprobs() ? spec.num_sequences() * (spec.num_logprobs + 1) : 0;
  int64_t num_tokens = 0;
  for (const PreparedPrompt& prompt : prompts) num_tokens += static_cast<int64_t>(prompt.ids.size());
  const int64_t num_logprobs = num_tokens * (listed + echoed);
  if (num_logprobs <= kMaxPromptLogprobs) return std::nullopt;
  const char* param = listed >= echoed ? "prompt_logprobs" : "logprobs";
  return ApiError{
      .status = 400,
      .message =
          format("{} prompt tokens with {} log-probabilities each, those of all choices together, make {}; a "
                 "reply takes {}: ask for fewer with '{}', for fewer choices, or for fewer prompts at once",
                 num_tokens,
                 listed + echoed,
                 num_logprobs,
                 kMaxPromptLogprobs,
                 param),
      .param = param};
}

MaybeError render_chat(const ServedModel& model, const ChatInput& chat, std::string& prompt) {
  if (model.chat_template == nullptr) {
    return ApiError{.status = 400,
                    .message =
                        "this model has no chat template; use /v1/completions, or start the server "
                        "with --chat-template",
                    .param = "messages"};
  }
  if (auto beyond =
          beyond_rendering(model.info.max_model_len, chat.messages_json.size() + chat.kwargs_json.size()))
    return too_long(std::move(*beyond), "messages");
  auto rendered = model.chat_template->render(chat.messages_json,
                                              {.add_generation_prompt = chat.add_generation_prompt,
                                               .continue_final_message = chat.continue_final_message,
                                               .kwargs_json = chat.kwargs_json});
  if (!rendered.ok()) return refused_text(rendered.status(), "messages");
  prompt = std::move(*rendered);
  return std::nullopt;
}

template <typename T>
T pick(const std::optional<T>& asked, const std::optional<T>& of_model, T otherwise) {
  return asked ? *asked : of_model.value_or(otherwise);
}

sched::SamplingParams sampling_of(const ServedModel& model, const GenerateSpec& spec, uint64_t random_seed) {
  const SamplingDefaults& defaults = model.info.defaults;
  sched::SamplingParams sampling;
  sampling.temperature = static_cast<float>(pick(spec.temperature, defaults.temperature, 1.0));
  sampling.top_p = static_cast<float>(pick(spec.top_p, defaults.top_p, 1.0));
  sampling.min_p = static_cast<float>(pick(spec.min_p, defaults.min_p, 0.0));
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(0, pick<int64_t>(spec.top_k, defaults.top_k, 0)));
  sampling.repetition_penalty =
      static_cast<float>(pick(spec.repetition_penalty, defaults.repetition_penalty, 1.0));
  sampling.presence_penalty = static_cast<float>(spec.presence_penalty);
  sampling.frequency_penalty = static_cast<float>(spec.frequency_penalty);
  sampling.seed = spec.seed.value_or(random_seed);
  sampling.min_tokens = static_cast<int32_t>(spec.min_tokens);
  sampling.num_logprobs = spec.best_of > spec.n ? std::max(0, spec.num_logprobs) : spec.num_logprobs;
  sampling.ignore_eos = spec.ignore_eos;
  if (!spec.ignore_eos) sampling.end_token_ids = model.info.eos_ids;
  sampling.end_token_ids.insert(
      sampling.end_token_ids.end(), spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  return sampling;
}

std::string bare_word(const std::string& word) {
  size_t first = word.find_first_not_of(' ');
  return first == std::string::npos ? word : word.substr(first);
}

// As the tokenizer writes the word at the start of a text, and after a space.
MaybeError add_bad_word(const ServedModel& model,
                        const std::string& bare,
                        std::vector<std::vector<int32_t>>& bans) {
  for (const std::string& text : {bare, " " + bare}) {
    auto ids = model.tokenizer->encode(text, {.add_special_tokens = false});
    if (!ids.ok()) return refused_text(ids.status(), "bad_words");
    if (!ids->empty()) bans.push_back(std::move(*ids));
  }
  return std::nullopt;
}

MaybeError read_bad_words(const ServedModel& model,
                          const std::vector<std::string>& words,
                          std::vector<std::vector<int32_t>>& bans) {
  int64_t fewest = 0;
  for (const std::string& word : words) {
    std::string bare = bare_word(word);
    // Likewise: what cannot fit is not encoded.
    fewest += model.tokenizer->fewest_tokens(bare);
    if (fewest > kMaxRuleWords) {
      return ApiError{
          .status = 400,
          .message = format("bad words of at least {} tokens; a request may take {}", fewest, kMaxRuleWords),
          .param = "bad_words"};
    }
    if (auto error = add_bad_word(model, bare, bans)) return error;
  }
  return std::nullopt;
}

MaybeError set_rules(const ServedModel& model, const GenerateSpec& spec, sched::SamplingParams& sampling) {
  if (auto error = check_ids(model, spec.allowed_token_ids, "allowed_token_ids")) return error;
  for (const TokenBias& bias : spec.logit_bias) {
    if (auto error = check_ids(model, {bias.token}, "logit_bias")) return error;
  }
  std::vector<std::vector<int32_t>> bans;
  if (auto error = read_bad_words(model, spec.bad_words, bans)) return error;
  sampling.no_repeat_ngram_size = static_cast<int32_t>(spec.no_repeat_ngram_size);
  sampling.rules = pack_rules(spec.allowed_token_ids, spec.logit_bias, bans);
  size_t num_words = sampling.rules.words.size() + sampling.end_token_ids.size();
  if (num_words <= kMaxRuleWords) return std::nullopt;
  const RuleCounts& counts = sampling.rules.counts;
  return ApiError{
      .status = 400,
      .message =
          format("{} allowed tokens, {} biases (2 words each), bad words of {} words and {} end tokens take "
                 "{} words; a request may take {}",
                 counts.num_allowed,
                 counts.num_biases,
                 counts.num_words - counts.num_allowed - 2 * counts.num_biases,
                 sampling.end_token_ids.size(),
                 num_words,
                 kMaxRuleWords),
      .param = counts.num_allowed > 0  ? "allowed_token_ids"
               : counts.num_bans > 0   ? "bad_words"
               : counts.num_biases > 0 ? "logit_bias"
                                       : "stop_token_ids"};
}

MaybeError check_limits(const ServedModel& model, int64_t max_choices, const GenerateSpec& spec) {
  auto num_prompts = std::max<int64_t>(1, static_cast<int64_t>(spec.prompts.size()));
  const char* number = spec.best_of > spec.n ? "best_of" : "n";
  if (num_prompts * spec.num_sequences() > max_choices) {
    return ApiError{.status = 400,
                    .message = format("{} prompts × {} {} make {} choices; the most in one request is {}",
                                      num_prompts,
                                      number,
                                      spec.num_sequences(),
                                      num_prompts * spec.num_sequences(),
                                      max_choices),
                    .param = number};
  }
  if (std::max(spec.num_logprobs, spec.num_prompt_logprobs) > model.info.max_logprobs) {
    const char* logprobs = spec.endpoint == Endpoint::kChat ? "top_logprobs" : "logprobs";
    return ApiError{
        .status = 400,
        .message = format("at most {} log-probabilities a token are served", model.info.max_logprobs),
        .param = spec.num_logprobs > model.info.max_logprobs ? logprobs : "prompt_logprobs"};
  }
  return check_ids(model, spec.stop_token_ids, "stop_token_ids");
}

}  // namespace

std::string beyond_context(int64_t limit, int64_t num_prompt, std::optional<int64_t> max_tokens) {
  if (!max_tokens)
    return above_limit(limit,
                       format("the prompt has {} tokens and leaves no room for an answer", num_prompt));
  return above_limit(limit,
                     format("you requested {} tokens ({} in the prompt, {} in the completion)",
                            num_prompt + *max_tokens,
                            num_prompt,
                            *max_tokens));
}

std::optional<ApiError> check_model(const ServedModel& model, const std::string& name) {
  const auto& names = model.info.served_names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return std::nullopt;
  std::string served;
  for (const std::string& one : names) served += format("{}'{}'", served.empty() ? "" : ", ", one);
  return ApiError{.status = 404,
                  .message = format("the model '{}' does not exist; served here: {}", name, served),
                  .param = "model",
                  .code = "model_not_found"};
}

std::optional<ApiError> tokenize_text(const ServedModel& model,
                                      const std::string& text,
                                      bool add_special_tokens,
                                      std::vector<int32_t>& ids) {
  return encode_to_count(model, text, add_special_tokens, "prompt", ids);
}

std::optional<ApiError> tokenize_chat(const ServedModel& model,
                                      const ChatInput& chat,
                                      bool add_special_tokens,
                                      std::vector<int32_t>& ids) {
  std::string prompt;
  if (auto error = render_chat(model, chat, prompt)) return error;
  return encode_to_count(model, prompt, add_special_tokens, "messages", ids);
}

std::optional<ApiError> check_detokenized(const ServedModel& model, const std::vector<int32_t>& ids) {
  const int64_t most = most_counted_tokens(model.info.max_model_len);
  if (static_cast<int64_t>(ids.size()) > most) {
    return too_long(above_limit(model.info.max_model_len,
                                format("{} are not put into words here, the most is {}", ids.size(), most)),
                    "tokens");
  }
  // What the model wrote, and what /tokenize made.
  const auto spelled = static_cast<int64_t>(model.tokenizer->vocab_size());
  return check_ids(ids, std::max(spelled, model.info.vocab_size), "tokens");
}

std::optional<ApiError> prepare(const ServedModel& model,
                                int64_t max_choices,
                                uint64_t random_seed,
                                GenerateSpec spec,
                                PreparedRequest& prepared) {
  if (auto error = check_model(model, spec.model)) return error;
  if (auto error = check_limits(model, max_choices, spec)) return error;
  if (spec.endpoint == Endpoint::kChat) {
    // A template writes its own BOS.
    std::string prompt;
    if (auto error = render_chat(model, spec.chat, prompt)) return error;
    if (auto error = encode_prompt(model, prompt, false, "messages", prepared.prompts.emplace_back().ids))
      return error;
  }
  for (const PromptInput& input : spec.prompts) {
    if (auto error = tokenize_prompt(model, input, spec.echo, prepared.prompts.emplace_back())) return error;
  }
  for (PreparedPrompt& prompt : prepared.prompts) {
    if (auto error = limit_tokens(model, spec, prompt)) return error;
  }
  if (auto error = limit_prompt_logprobs(spec, prepared.prompts)) return error;
  prepared.sampling = sampling_of(model, spec, random_seed);
  if (auto error = set_rules(model, spec, prepared.sampling)) return error;
  prepared.spec = std::move(spec);
  return std::nullopt;
}

}  // namespace llm_dist::server
