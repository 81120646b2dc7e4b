// What a token costs the threads of rank 0 that are no engine: the API server with a fake engine behind it,
// which yields one token of each running sequence a millisecond. Prints its URL, serves until SIGINT, then
// prints the processor time of each thread: `server_stream_rate [port]`. Something else loads it, such as
// `llm-dist bench serve`; its own processor time is the other figure.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "src/server/api_server.h"
#include "tests/server/fake_engine.h"
#include "tests/text/vocabularies.h"

namespace llm_dist::server {
namespace {

int complain(const Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

// proc(5): the fields behind the name, which may hold blanks, are numbered from 3.
double processor_seconds(const std::string& stat) {
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void print_threads() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return;
  while (const dirent* task = ::readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + task->d_name + "/stat");
    std::string stat;
    if (!std::getline(file, stat)) continue;
    size_t open = stat.find('('), close = stat.rfind(')');
    std::printf("%-16s %8.2f s\n", stat.substr(open + 1, close - open - 1).c_str(), processor_seconds(stat));
  }
  ::closedir(tasks);
}

// Blocked before any thread is made, so that all inherit it.
sigset_t block_interrupts() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int serve(uint16_t port) {
  sigset_t signals = block_interrupts();
  auto tokenizer = text::Tokenizer::create(text::byte_vocabulary("gpt-2", {}));
  if (!tokenizer.ok()) return complain(tokenizer.status());
  FakeEngine engine;
  engine.set_scripts({{'w', 'o', 'r', 'd', ' '}});
  engine.set_round_ms(1);
  ServerOptions options;
  options.port = port;
  auto server = ApiServer::start(options);
  if (!server.ok()) return complain(server.status());
  ModelInfo model;
  model.served_names = {"tiny"};
  model.max_model_len = 4096;
  model.vocab_size = (*tokenizer)->vocab_size();
  model.max_num_seqs = 1024;
  model.eos_ids = (*tokenizer)->eos_ids();
  (*server)->attach(engine, **tokenizer, nullptr, model);
  std::printf("%s\n", (*server)->url().c_str());
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&signals, &signal);
  print_threads();
  return (*server)->shutdown(Deadline::after_seconds(5)).ok() ? 0 : 1;
}

}  // namespace
}  // namespace llm_dist::server

int main(int argc, char** argv) {
  return llm_dist::server::serve(static_cast<uint16_t>(argc > 1 ? std::atoi(argv[1]) : 0));
}
