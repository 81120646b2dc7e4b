#include "tests/cluster/simulation/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "cluster/attempt_plan.h"

namespace llm_dist::cluster::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kTerminated = 143;
constexpr int kKilled = 137;
constexpr double kBlind = 0.02;         // looks at processes that tell nothing
constexpr int kFirstGroup = 1'000'000;  // of the fibers of processes

std::string variable(const LaunchRequest& request, const std::string& name) {
  for (const auto& [key, value] : request.environment) {
    if (key == name) return value;
  }
  return "";
}

// "STORE:job-7:2"
std::pair<JobId, int64_t> read_mark(const std::string& mark) {
  size_t second = mark.rfind(':');
  size_t first = mark.rfind(':', second - 1);
  return {parse_job_name(mark.substr(first + 1, second - first - 1)).value(),
          std::stoll(mark.substr(second + 1))};
}

}  // namespace

Result<std::string> Machine::launch(const LaunchRequest& request) {
  world_.await(milliseconds(20));
  if (world_.fault(0.03)) return failed_precondition("no such program");
  auto process = std::make_unique<Process>();
  process->number = static_cast<int>(processes_.size());
  process->request = request;
  std::tie(process->job, process->attempt) = read_mark(request.mark);
  process->url = format("http://replica-{}", process->number);
  process->changed = world_.fibers->make_condition();
  check_launch(*process);
  ++world_.result.num_launches;
  Process& launched = *process;
  processes_.push_back(std::move(process));
  world_.note(
      "launched process {} for {} attempt {}", launched.number, job_name(launched.job), launched.attempt);
  world_.fibers->spawn(kFirstGroup + launched.number, [this, &launched] { live(launched); });
  world_.await(milliseconds(20));
  return std::to_string(launched.number);
}

void Machine::check_launch(const Process& launched) {
  int used = launched.request.num_ranks;
  const std::vector<int>& slots = launched.request.slots;
  if (std::ssize(slots) != used) world_.violate(format("{} ranks on {} slots", used, slots.size()));
  for (const auto& process : processes_) {
    if (!process->ranks) continue;
    used += process->request.num_ranks;
    for (int slot : process->request.slots) {
      if (std::find(slots.begin(), slots.end(), slot) != slots.end())
        world_.violate(
            format("process {} is on slot {}, and so is {}", process->number, slot, launched.number));
    }
    if (process->job != launched.job) continue;
    world_.violate(format("two processes of {} live: {} of attempt {} and one of attempt {}",
                          job_name(launched.job),
                          process->number,
                          process->attempt,
                          launched.attempt));
  }
  if (used > kNumSlots) world_.violate(format("{} of {} slots are in use", used, kNumSlots));
}

Result<Observation> Machine::observe(const std::string& handle, const std::string&) {
  if (world_.fault(kBlind)) {
    if (world_.options.mutant == Mutant::kTakesDoubtForDeath) return Observation{};
    return unavailable("too many open files");
  }
  const Process& process = *processes_.at(std::stoul(handle));
  return Observation{.running = process.keeper,
                     .exit_code = process.keeper ? std::nullopt : process.exit_code};
}

Status Machine::stop(const std::string& handle, StopMode mode) {
  if (world_.fault(kBlind)) return unavailable("too many open files");
  Process& process = *processes_.at(std::stoul(handle));
  bool kills = mode == StopMode::kKill;
  world_.note("process {} is {}", process.number, kills ? "killed" : "asked to end");
  if (!process.keeper || (process.deaf && !kills)) return ok_status();
  world_.fibers->spawn(Fibers::kWorld, [this, &process, kills] {
    world_.fibers->sleep(world_.fibers->between(0, kills ? 0.5 : 3));
    end(process, kills ? kKilled : kTerminated);
  });
  return ok_status();
}

Result<int> Machine::sweep(const std::string& mark, const std::string&) {
  world_.await();
  if (world_.fault(kBlind)) {
    if (world_.options.mutant == Mutant::kTakesDoubtForDeath) return 0;
    return unavailable("too many open files");
  }
  if (world_.options.mutant == Mutant::kLaunchesTwice) return 0;
  int found = 0;
  for (const auto& process : processes_) {
    if (!process->ranks || process->request.mark != mark) continue;
    end(*process, std::nullopt);
    ++found;
  }
  world_.await();
  return found;
}

// Its own fiber may be the one that says so.
void Machine::end(Process& process, std::optional<int> exit_code) {
  if (!process.ranks) return;
  if (process.keeper) process.exit_code = exit_code;
  process.keeper = false;
  process.ranks = false;
  world_.note("process {} ended", process.number);
  process.changed->notify_all();
  Fibers::Group group = kFirstGroup + process.number;
  if (world_.fibers->group() != group) world_.fibers->kill(group);
}

void Machine::end_all(std::optional<int> exit_code) {
  for (const auto& process : processes_) end(*process, exit_code);
}

std::vector<const Machine::Process*> Machine::living(JobId job) const {
  std::vector<const Process*> found;
  for (const auto& process : processes_) {
    if (process->ranks && process->job == job) found.push_back(process.get());
  }
  return found;
}
size_t Machine::num_living() const {
  return std::count_if(processes_.begin(), processes_.end(), [](const auto& each) { return each->ranks; });
}
Machine::Process* Machine::find(const std::string& url) {
  for (const auto& process : processes_) {
    if (process->url == url) return process.get();
  }
  return nullptr;
}
const Machine::Process* Machine::find(JobId job, int64_t attempt) const {
  for (auto process = processes_.rbegin(); process != processes_.rend(); ++process) {
    if ((*process)->job == job && (*process)->attempt == attempt) return process->get();
  }
  return nullptr;
}

void Machine::live(Process& process) {
  process.deaf = world_.fault(0.1);
  if (process.request.arguments.at(0) == "bench") {
    measure(process);
  } else {
    serve(process);
  }
}

void Machine::measure(Process& process) {
  Fibers& fibers = *world_.fibers;
  fibers.sleep(fibers.between(1, 15));
  if (world_.fault(0.25)) return end(process, 1);
  if (world_.fault(0.05)) {
    process.keeper = false;  // it is killed; the ranks go on
    fibers.sleep(fibers.between(1, 60));
    return end(process, std::nullopt);
  }
  if (!world_.fault(0.05)) {
    std::filesystem::create_directories(process.request.folder);
    std::ofstream(result_file_of(process.request.folder)) << "{}";
  }
  end(process, 0);
}

void Machine::serve(Process& process) {
  Fibers& fibers = *world_.fibers;
  bool slow = world_.fault(0.05);  // beyond the time that it has
  fibers.sleep(slow ? fibers.between(20, 90) : fibers.between(0.5, 5));
  // Few jobs can never run.
  if (world_.fault(0.1) || process.job % 16 == 5) return end(process, 1);
  if (world_.fault(0.05)) {
    process.hung_since = fibers.now();
    return;
  }
  if (!register_at_coordinator(process)) return end(process, 1);
  fibers.sleep(fibers.between(1, 60));
  meet_its_fate(process);
}

void Machine::meet_its_fate(Process& process) {
  Fibers& fibers = *world_.fibers;
  if (world_.fault(0.2)) return end(process, kKilled);
  if (world_.fault(0.1)) {
    world_.note("process {} hangs", process.number);
    process.hung_since = fibers.now();
  } else if (world_.fault(0.05)) {
    world_.note("the keeper of process {} is killed", process.number);
    process.keeper = false;
    process.changed->notify_all();
  }
}

// False: it was turned away.
bool Machine::register_at_coordinator(Process& process) {
  if (world_.fault(0.1)) {
    Reply reply = send_registration(process, false);
    if (reply && reply->status / 100 == 2) world_.violate("a replica registered with a wrong secret");
  }
  while (true) {
    Reply reply = send_registration(process, true);
    if (reply && reply->status == 200) break;
    if (reply && reply->status < 500) return false;
    world_.fibers->sleep(seconds(1));
  }
  // The network may bring a message again, much later.
  if (world_.fault(0.2)) {
    world_.fibers->spawn(Fibers::kWorld, [this, &process] {
      world_.fibers->sleep(world_.fibers->between(0, 60));
      (void)send_registration(process, true);
    });
  }
  return true;
}

Reply Machine::send_registration(const Process& process, bool right_secret) {
  nlohmann::json body = {{"job", job_name(process.job)},
                         {"attempt", process.attempt},
                         {"endpoint", process.url},
                         {"secret", variable(process.request, "LLM_DIST_REGISTER_SECRET")}};
  if (!right_secret) body["secret"] = "guessed";
  return send_({.method = "POST", .path = "/v1/replicas", .body = body.dump()});
}

namespace {

class Watch : public ReplicaWatch {
 public:
  explicit Watch(Machine& machine) : machine_(machine) {}
  void watch(const ReplicaAttempt& replica, const std::string& endpoint) override {
    endpoints_[replica] = endpoint;
  }
  void forget(const ReplicaAttempt& replica) override { endpoints_.erase(replica); }
  int64_t failing_us(const ReplicaAttempt& replica) override {
    Machine::Process* process = machine_.find(endpoints_[replica]);
    if (process == nullptr || !process->ranks || !process->hung_since) return 0;
    return std::chrono::duration_cast<std::chrono::microseconds>(machine_.world().fibers->now() -
                                                                 *process->hung_since)
        .count();
  }
  void drain(const ReplicaAttempt& replica, const std::string& api_key) override {
    Machine::Process* process = machine_.find(endpoints_[replica]);
    if (process == nullptr || process->hung_since || process->deaf) return;
    if (api_key != variable(process->request, "LLM_DIST_API_KEY")) {
      machine_.world().violate("a replica was asked to drain with a wrong key");
    }
    process->draining = true;
    machine_.world().fibers->spawn(Fibers::kWorld, [this_machine = &machine_, process] {
      Fibers& fibers = *this_machine->world().fibers;
      fibers.sleep(fibers.between(0, 2));
      while (process->num_open > 0 && process->ranks) fibers.sleep(seconds(1));
      this_machine->end(*process, 0);
    });
  }

 private:
  Machine& machine_;
  std::map<ReplicaAttempt, std::string> endpoints_;
};

http::Response failure(int status, const char* code) {
  nlohmann::json body;
  body["error"] = {{"message", "no"}, {"code", code}};
  return {.status = status, .body = body.dump()};
}

class Client : public ItemClient {
 public:
  explicit Client(Machine& machine)
      : machine_(machine),
        changed_(machine.world().fibers->make_condition()),
        aborted_here_(machine.world().fibers->make_condition()) {}
  ~Client() override {
    for (const auto& request : requests_) request->thread->join();
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void start(http::ClientRequest request, Deadline deadline, OnDone on_done) override {
    requests_.push_back(std::make_unique<Request>());
    Request& started = *requests_.back();
    started.on_done = std::move(on_done);
    started.thread = machine_.world().fibers->start([this, &started, request = std::move(request), deadline] {
      started.answer = perform(request, deadline);
      changed_->notify_all();
    });
  }
  void wait(TimePoint until) override {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    auto is_done = [](const std::unique_ptr<Request>& request) { return request->answer.has_value(); };
    if (!woken_ && std::none_of(requests_.begin(), requests_.end(), is_done)) {
      (void)changed_->wait_until(lock, until);
    }
    woken_ = false;
    auto done = std::stable_partition(requests_.begin(), requests_.end(), std::not_fn(is_done));
    std::vector<std::unique_ptr<Request>> answered(std::make_move_iterator(done),
                                                   std::make_move_iterator(requests_.end()));
    requests_.erase(done, requests_.end());
    for (const auto& request : answered) {
      request->thread->join();
      request->on_done(std::move(*request->answer));
    }
  }
  void wake() override {
    woken_ = true;
    changed_->notify_all();
  }
  void abort() override {
    aborted_ = true;
    aborted_here_->notify_all();
    wake();
  }

 private:
  struct Request {
    OnDone on_done;
    std::optional<Result<http::Response>> answer{};
    std::unique_ptr<Thread> thread{};
  };

  Result<http::Response> perform(const http::ClientRequest& request, Deadline deadline) {
    Fibers& fibers = *machine_.world().fibers;
    machine_.world().await(milliseconds(5));
    if (aborted_) return cancelled("aborted");
    Machine::Process* process = machine_.find(request.url.substr(0, request.url.find("/v1/")));
    if (process == nullptr || !process->ranks) return unavailable("refused");
    const std::string* key = request.headers.find("Authorization");
    if (key == nullptr || *key != "Bearer " + variable(process->request, "LLM_DIST_API_KEY")) {
      machine_.world().violate("an item was sent with a wrong key");
    }
    if (process->draining) return failure(503, "draining");
    Open open(process->num_open);
    Result<http::Response> answer = work(*process, request.body, deadline);
    // Who gets an answer may be held up before he writes it down, and meanwhile the engine dies.
    if (machine_.world().fault(0.05)) {
      if (fibers.chance(0.5)) machine_.end(*process, kKilled);
      fibers.sleep(fibers.between(1, 20));
    }
    return fibers.now() > deadline.when() ? deadline_exceeded("no answer in time") : answer;
  }

  // However it ends.
  class Open {
   public:
    explicit Open(int& count) : count_(count) { ++count_; }
    ~Open() { --count_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    int& count_;
  };

  Result<http::Response> work(Machine::Process& process, const std::string& body, Deadline deadline) {
    World& world = machine_.world();
    Fibers& fibers = *world.fibers;
    std::string prompt = nlohmann::json::parse(body).value("prompt", "");
    if (world.recorded.contains(prompt)) world.violate(prompt + " is executed again");
    TimePoint done = fibers.now() + fibers.between(0.05, 2);
    if (prompt.starts_with("slow") && world.chaos) done = deadline.when();
    std::mutex mutex;
    std::unique_lock lock(mutex);
    while (fibers.now() < done || process.hung_since) {
      TimePoint until = std::min(deadline.when(), fibers.now() + seconds(1));
      if (fibers.now() < done) until = std::min(until, done);
      (void)aborted_here_->wait_until(lock, until);
      if (aborted_) return cancelled("aborted");
      if (!process.ranks) return unavailable("the connection broke");
      if (fibers.now() >= deadline.when()) return deadline_exceeded("no answer in time");
    }
    if (prompt.starts_with("poison") && fibers.chance(0.8)) {
      machine_.end(process, kKilled);
      return unavailable("the connection broke");
    }
    if (prompt.starts_with("refused")) return failure(400, "invalid");
    if (prompt.starts_with("flaky") && fibers.chance(0.5)) return failure(500, "internal");
    if (world.fault(0.05)) return failure(429, "overloaded");
    process.answered.insert(prompt);
    nlohmann::json answer = {{"text", "echo " + prompt}};
    return http::Response{.body = answer.dump()};
  }

  Machine& machine_;
  std::unique_ptr<Condition> changed_;
  std::unique_ptr<Condition> aborted_here_;
  bool woken_ = false;
  bool aborted_ = false;
  std::vector<std::unique_ptr<Request>> requests_;
};

}  // namespace

std::unique_ptr<ReplicaWatch> make_watch(Machine& machine) { return std::make_unique<Watch>(machine); }
std::unique_ptr<ItemClient> make_item_client(Machine& machine) { return std::make_unique<Client>(machine); }

std::string item_prompt(World& world, int64_t number) {
  constexpr std::pair<double, const char*> kKinds[] = {
      {0.05, "poison"}, {0.1, "refused"}, {0.15, "flaky"}, {0.05, "slow"}};
  for (const auto& [probability, kind] : kKinds) {
    if (world.fibers->chance(probability)) return format("{}-{}", kind, number);
  }
  return format("good-{}", number);
}

}  // namespace llm_dist::cluster::simulation
