// `llm-dist chat`: a conversation on the terminal, with a server or with a model of this process.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "launch/chat_session.h"
#include "launch/commands.h"
#include "launch/local_chat.h"
#include "launch/near_words.h"
#include "launch/remote_chat.h"
#include "launch/server_flags.h"

namespace llm_dist::launch {
namespace {

struct ChatFlags {
  EngineFlags engine;
  ServerFlags server;
  SamplingFlags sampling{.max_tokens = 1024};
  const CLI::Option* max_tokens = nullptr;
  std::string model_name;
  std::string system_prompt;
};

ChatTerminal standard_terminal() {
  return {.input_fd = STDIN_FILENO,
          .interactive = isatty(STDIN_FILENO) != 0,
          .print =
              [](std::string_view text) {
                std::fwrite(text.data(), 1, text.size(), stdout);
                std::fflush(stdout);
              },
          .print_error =
              [](std::string_view text) {
                std::fprintf(stderr, "llm-dist: %.*s\n", static_cast<int>(text.size()), text.data());
              }};
}

int converse(const ChatFlags& flags, ChatModel& model, InterruptKey& interrupt) {
  interrupt.begin();
  return ChatSession(model, interrupt, standard_terminal(), flags.system_prompt).run();
}

Result<RemoteChatOptions> remote_options(const ChatFlags& flags, const ServerAccess& server) {
  RemoteChatOptions options{.model = flags.model_name,
                            .temperature = flags.sampling.draw.temperature,
                            .top_p = flags.sampling.draw.top_p,
                            .top_k = flags.sampling.draw.top_k,
                            .seed = flags.sampling.seed,
                            .max_tokens = std::nullopt};
  if (flags.max_tokens->count() > 0) options.max_tokens = flags.sampling.max_tokens;
  if (options.model.empty()) {
    http::Client client(server.client);
    ASSIGN_OR_RETURN(options.model, first_model(client, server));
  }
  return options;
}

int chat_with_server(const ChatFlags& flags) {
  InterruptKey interrupt;
  if (Status status = apply_log_flags(flags.engine); !status.ok()) return report(nullptr, status);
  auto server = open_access(flags.server);
  if (!server.ok()) return report(nullptr, server.status());
  auto options = remote_options(flags, *server);
  if (!options.ok()) return report(nullptr, options.status());
  RemoteChat model(std::move(*server), std::move(*options));
  return converse(flags, model, interrupt);
}

int chat_with_model(const ChatFlags& flags) {
  InterruptKey interrupt;  // before any thread is started, so that every thread inherits its mask
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status = process.load_with_text(flags.engine);
  int code = 0;
  if (status.ok() && process.leads()) {
    auto model = LocalChat::create(flags.sampling, process);
    status = model.status();
    if (model.ok()) code = converse(flags, **model, interrupt);
  } else if (status.ok()) {
    interrupt.begin();  // a terminal tells every rank; rank 0 decides
    status = process.follow();
  }
  int ended = end(process, status);
  return ended != 0 ? ended : code;
}

int run(ChatFlags& flags) {
  if (flags.engine.model.model.empty()) return chat_with_server(flags);
  return in_ranks(flags.engine.launch, [&] { return chat_with_model(flags); });
}

// Without a model of this process there is nothing that its flags, those of `app` so far, would be of. But
// the flags of a file are for every command.
void leave_to_model(CLI::App& app, const CLI::Option* model) {
  constexpr std::array kOfAnyChat = {"help", "config", "log-level", "log-format"};
  std::vector<const CLI::Option*> of_model;
  for (const std::string& flag : known_flags(app)) {
    const CLI::Option* option = app.get_option(flag);
    if (std::ranges::find(kOfAnyChat, option->get_lnames().front()) == kOfAnyChat.end())
      of_model.push_back(option);
  }
  const CLI::Option* file = app.get_option("--config");
  app.parse_complete_callback([model, file, of_model] {
    if (model->count() > 0 || file->count() > 0) return;
    for (const CLI::Option* option : of_model)
      if (option->count() > 0) throw CLI::RequiresError(option->get_name(), "MODEL, a model of this process");
  });
}

}  // namespace

RunCommand add_chat(CLI::App& program) {
  auto flags = std::make_shared<ChatFlags>();
  flags->engine.log_level = "warning";
  CLI::App* app = program.add_subcommand("chat", "Talk to a running server, or to a model in this process");
  add_engine_flags(*app, flags->engine);
  CLI::Option* model = app->get_option("model")->required(false);
  model->description("Load this model here: a directory or a .gguf file (without it: a server answers)");
  leave_to_model(*app, model);
  add_server_flags(*app, flags->server);
  for (const char* server : {"--base-url", "--host", "--port", "--uds"})
    app->get_option(server)->excludes(model);
  app->add_option("--model-name", flags->model_name, "Model of the server (default: its first)");
  app->add_option("--system", flags->system_prompt, "The system prompt");
  flags->max_tokens = add_sampling_flags(*app, flags->sampling)
                          ->description("Of an answer; a server grants its own number without this flag");
  app->footer(
      "Typed in the conversation: /reset, /system TEXT, /help, /quit; a \\ at the end of a line goes on in "
      "the\n"
      "next. Ctrl-C stops an answer, a second one ends. Through a pipe each line is a message, and only the\n"
      "answers are printed.\n"
      "Examples:\n"
      "  llm-dist chat --base-url http://127.0.0.1:8000\n"
      "  llm-dist chat model.gguf --system 'Answer in one sentence.'\n"
      "  echo 'What is the capital of France?' | llm-dist chat model.gguf");
  return [flags] { return run(*flags); };
}

}  // namespace llm_dist::launch
