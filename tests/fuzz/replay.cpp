// Runs a fuzz target without libFuzzer: every file of a corpus, then mutations of them by a fixed seed.
// usage: NAME_fuzz [--iterations N] [--seed N] FILE|FOLDER…
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.h"

// Sanitizers that end the process by themselves call this first.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(
    void (*callback)());  // NOLINT(bugprone-reserved-identifier)

namespace llm_dist::fuzz {
namespace {

constexpr size_t kMaxInputBytes = 64 << 10;
constexpr time_t kMaxSecondsAnInput = 60;  // of the processor: a busy machine is no finding

struct Options {
  int64_t iterations = 0;
  uint64_t seed = 1;
  std::vector<std::string> paths;
};

// What a signal handler needs: the input that runs, and where to put it.
struct Running {
  std::string reproducer;
  const std::string* input = nullptr;
};
Running& running() {
  static Running state;
  return state;
}

// Only calls that are safe in a handler.
void say(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

void keep_input() {
  const Running& state = running();
  if (state.input == nullptr) return;
  FILE* file = std::fopen(state.reproducer.c_str(), "wb");
  if (file == nullptr) return;
  std::fwrite(state.input->data(), 1, state.input->size(), file);
  std::fclose(file);
  say("the failing input: ");
  say(state.reproducer);
  say("\n");
  running().input = nullptr;
}

void on_signal(int signal) {
  if (signal == SIGPROF) say("an input that takes a minute\n");
  keep_input();
  std::_Exit(128 + signal);
}

// Stack overflows need a stack of their own to be told of.
void watch_for_failures() {
  static std::array<char, 64 << 10> stack;
  stack_t alternate{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  ::sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  for (int signal : {SIGABRT, SIGPROF}) ::sigaction(signal, &action, nullptr);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(keep_input);
  } else {
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::sigaction(signal, &action, nullptr);
  }
}

// 0: off.
void set_timer(time_t seconds) {
  itimerval timer{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

void run(const std::string& input) {
  // A copy of the exact size: a byte read past the end is seen.
  std::vector<uint8_t> bytes(input.begin(), input.end());
  running().input = &input;
  set_timer(kMaxSecondsAnInput);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  set_timer(0);
  running().input = nullptr;
}

// The same everywhere: no distribution of the standard library's, whose numbers differ between them.
class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, uint64_t seed) : corpus_(corpus), random_(seed) {}

  std::string next() {
    std::string text = pick(corpus_);
    for (uint64_t n = 1 + below(4); n > 0; --n) mutate(text);
    if (text.size() > kMaxInputBytes) text.resize(kMaxInputBytes);
    return text;
  }

 private:
  uint64_t below(uint64_t end) { return end == 0 ? 0 : random_() % end; }
  template <typename List>
  auto pick(const List& list) -> decltype((list[0])) {
    return list[below(std::size(list))];
  }
  struct Range {
    size_t begin;
    size_t count;
  };
  Range range_of(const std::string& text) {
    size_t begin = below(text.size() + 1);
    return {begin, below(std::min<size_t>(text.size() - begin, 64) + 1)};
  }

  void mutate(std::string& text) {
    switch (below(9)) {
      case 0: return flip_bit(text);
      case 1: return text.resize(below(text.size() + 1));
      case 2: return splice(text);
      case 3:
      case 4: return replace_number(text);
      case 5: return overwrite_binary(text);
      case 6: return remove(text);
      case 7: return repeat(text);
      default: return insert_word(text);
    }
  }
  void flip_bit(std::string& text) {
    if (text.empty()) return;
    char& byte = text[below(text.size())];
    byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1u << below(8)));
  }
  void splice(std::string& text) {
    const std::string& other = pick(corpus_);
    text = text.substr(0, below(text.size() + 1)) + other.substr(below(other.size() + 1));
  }
  void replace_number(std::string& text) {
    constexpr std::string_view kNumbers[] = {"0",
                                             "-1",
                                             "1",
                                             "2147483647",
                                             "2147483648",
                                             "4294967296",
                                             "9223372036854775807",
                                             "9223372036854775808",
                                             "18446744073709551615",
                                             "1e400",
                                             "-1e308",
                                             "0.5",
                                             "99999999999999999999",
                                             "null",
                                             "\"7\""};
    size_t at = text.find_first_of("0123456789", below(text.size() + 1));
    if (at == text.npos) return;
    size_t end = std::min(text.find_first_not_of("0123456789.eE+-", at), text.size());
    text.replace(at, end - at, pick(kNumbers));
  }
  void overwrite_binary(std::string& text) {
    constexpr uint64_t kValues[] = {
        0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, uint64_t{1} << 40, INT64_MAX, UINT64_MAX};
    uint64_t value = pick(kValues);
    size_t width = size_t{1} << below(4);
    if (text.size() < width) return;
    text.replace(
        below(text.size() - width + 1), width, std::string(reinterpret_cast<const char*>(&value), width));
  }
  void remove(std::string& text) {
    Range range = range_of(text);
    text.erase(range.begin, range.count);
  }
  void repeat(std::string& text) {
    Range range = range_of(text);
    std::string piece = text.substr(range.begin, range.count);
    for (uint64_t n = 1 + below(uint64_t{1} << below(10)); n > 0 && text.size() < kMaxInputBytes; --n)
      text.insert(range.begin, piece);
  }
  void insert_word(std::string& text) {
    constexpr std::string_view kWords[] = {
        "[",    "{",          "}",        "]",  "\"", "\\",      ",",
        ":",    "\r\n",       "\n",       "\r", " ",  "\\ud800", "\xED\xA0\x80",
        "\xFF", "<|im_end|>", "\n====\n", "--", ";",  "{{",      "{%"};
    text.insert(below(text.size() + 1), pick(kWords));
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good(), "{}", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> read_corpus(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path))
      files.emplace_back(path);
    else
      for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  return corpus;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    bool takes_number = (argument == "--iterations" || argument == "--seed") && i + 1 < argc;
    if (!takes_number) {
      options.paths.emplace_back(argument);
      continue;
    }
    std::string_view text = argv[++i];
    uint64_t value = 0;
    CHECK(std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc(), "{}", text);
    if (argument == "--seed")
      options.seed = value;
    else
      options.iterations = static_cast<int64_t>(value);
  }
  return options;
}

}  // namespace
}  // namespace llm_dist::fuzz

int main(int argc, char** argv) {
  using namespace llm_dist::fuzz;
  Options options = parse(argc, argv);
  std::vector<std::string> corpus = read_corpus(options.paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [--iterations N] [--seed N] FILE|FOLDER…\n", argv[0]);
    return 2;
  }
  running().reproducer = std::filesystem::absolute(argv[0]).string() + ".failure";
  watch_for_failures();
  for (const std::string& input : corpus) run(input);
  Mutator mutator(corpus, options.seed);
  for (int64_t i = 0; i < options.iterations; ++i) run(mutator.next());
  std::printf("%zu files, %lld mutations\n", corpus.size(), static_cast<long long>(options.iterations));
  return 0;
}
