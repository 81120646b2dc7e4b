#include "tests/cluster/simulation/simulation.h"

#include <filesystem>
#include <utility>

#include "tests/cluster/simulation/clients.h"

namespace llm_dist::cluster::simulation {
namespace {

using std::chrono::seconds;

constexpr auto kOrphan = seconds(15);       // without a coordinator, then keepers end their attempts
constexpr auto kLongestEnd = seconds(900);  // of what is left once faults have stopped
constexpr auto kLongestPlay = seconds(7200);

class Simulation {
 public:
  Simulation(const SimulationOptions& options, const std::string& folder)
      : world_(options),
        fibers_(*world_.fibers),
        disk_("simulation", options.seed),
        machine_(world_, [this](http::Request request) { return clients_.send(std::move(request)); }),
        ledger_(world_, machine_, folder + "/files"),
        clients_(world_, ledger_, [this] { return life_.get(); }),
        changed_(fibers_.make_condition()),
        place_{.world = world_,
               .ledger = ledger_,
               .machine = machine_,
               .disk = disk_,
               .folder = folder,
               .removes_old_jobs = fibers_.chance(0.3)},
        curtain_(fibers_.now() + kLongestPlay) {
    testing::CrashVfs::seed_sqlite(options.seed);
    disk_.set_sleepless();
    disk_.set_lying(options.mutant == Mutant::kLyingDisk);
    constexpr double kRates[] = {0, 0.002, 0.005, 0.02};
    world_.crash_at_await = kRates[fibers_.below(4)];
  }

  SimulationResult run() {
    fibers_.spawn(Fibers::kWorld, [this] { operate(); });
    fibers_.spawn(Fibers::kWorld, [this] { direct(); });
    fibers_.spawn(Fibers::kWorld, [this] { trouble_the_disk(); });
    bool went_on = fibers_.run([this] { after_step(); });
    if (!went_on) world_.violate("nothing can go on");
    disk_.kill_process();
    fibers_.kill(group_);
    life_.reset();
    fibers_.kill_all();
    return std::move(world_.result);
  }

 private:
  void after_step();
  void direct();
  void operate();
  void begin_life();
  void end_life();
  void haunt(CheckedStore& store);
  void recover(TimePoint since);
  void trouble_the_disk();
  bool all_ended();

  World world_;
  Fibers& fibers_;
  testing::CrashVfs disk_;
  Machine machine_;
  Ledger ledger_;
  Clients clients_;
  std::unique_ptr<Condition> changed_;
  Place place_;
  std::unique_ptr<CoordinatorLife> life_;
  Fibers::Group group_ = Fibers::kWorld;  // of the life
  std::optional<Crash> happened_;         // and is not recovered from
  std::optional<int64_t> old_epoch_;
  const TimePoint curtain_;
};

// Before anything else happens the dead is dead.
void Simulation::after_step() {
  if (fibers_.now() > curtain_ && !world_.failed()) world_.violate("the play has no end");
  if (world_.failed()) fibers_.stop();
  // Whoever wrote last.
  if (!happened_ && !world_.crash && disk_.crashed()) world_.crash = Crash::kPower;
  if (!world_.crash) return;
  happened_ = std::exchange(world_.crash, std::nullopt);
  world_.may_crash = false;
  bool power = happened_ == Crash::kPower;
  world_.note("CRASH: {}", power ? "power fails" : "the coordinator is killed");
  ++world_.result.num_crashes;
  disk_.kill_process();
  if (life_) *life_->dead = true;
  // The destructors of a process that is killed remove no file.
  const std::string files = place_.folder + "/files";
  std::error_code none;
  std::filesystem::rename(files, files + ".away", none);
  fibers_.kill(group_);
  std::filesystem::rename(files + ".away", files, none);
  if (power) machine_.end_all(std::nullopt);
  changed_->notify_all();
}

// The whole play: faults, and then none.
void Simulation::direct() {
  TimePoint end = fibers_.now() + fibers_.between(30, 120);
  int64_t num_clients = 1 + fibers_.below(2);
  for (int64_t i = 0; i < num_clients; ++i) {
    fibers_.spawn(Fibers::kWorld, [this, end] { clients_.live(end); });
  }
  fibers_.sleep(end - fibers_.now());
  world_.note("no more faults");
  world_.chaos = false;
  TimePoint last = fibers_.now() + kLongestEnd;
  while (fibers_.now() < last) {
    if (all_ended()) break;
    clients_.close_everything();
    fibers_.sleep(seconds(15));
  }
  if (life_ == nullptr || *life_->dead) {
    world_.violate("there is no coordinator at the end");
  } else {
    ledger_.check_ended(life_->store());
  }
  fibers_.stop();
}

bool Simulation::all_ended() {
  if (life_ == nullptr || *life_->dead || machine_.num_living() > 0) return false;
  Result<JobCounts> counts = life_->store().counts();
  Result<std::vector<Batch>> open = life_->store().batches().open_batches();
  if (!counts.ok() || !open.ok() || !open.value().empty()) return false;
  for (int i = 0; i < kNumJobStates; ++i) {
    auto state = static_cast<JobState>(i);
    if (!is_terminal(state) && counts.value().of(state) != 0) return false;
  }
  return true;
}

// Starts a coordinator whenever there is none, and now and then asks one to end.
void Simulation::operate() {
  std::unique_ptr<Condition>& changed = changed_;
  std::mutex mutex;
  std::unique_lock lock(mutex);
  while (true) {
    begin_life();
    TimePoint stop = fibers_.now() + fibers_.between(5, 200);
    while (!happened_ && life_ != nullptr && (fibers_.now() < stop || !world_.chaos)) {
      (void)changed->wait_until(lock, world_.chaos ? stop : TimePoint::max());
    }
    TimePoint since = fibers_.now();
    if (life_ != nullptr && !happened_) world_.note("the coordinator is asked to end");
    end_life();
    recover(since);
  }
}

void Simulation::begin_life() {
  ++group_;
  bool begun = false;
  // It belongs to the life, and may end with it.
  fibers_.spawn(group_, [this, &begun] {
    world_.may_crash = true;
    if (world_.fault(0.05)) disk_.crash_after(1 + fibers_.below(20));
    Result<std::unique_ptr<CoordinatorLife>> life = CoordinatorLife::begin(place_);
    if (!life.ok()) {
      const std::string why = format("the coordinator does not start: {}", life.status().message());
      world_.note("{}", why);
      if (life.status().code() == StatusCode::kDataLoss) world_.violate(why);
    } else {
      world_.note("a coordinator starts, epoch {}", life.value()->store().epoch());
      ledger_.check_all(life.value()->store());
      haunt(life.value()->store());
      life_ = std::move(life).value();
      life_->go();
    }
    begun = true;
    changed_->notify_all();
  });
  std::mutex mutex;
  std::unique_lock lock(mutex);
  changed_->wait_for(lock, [&] { return begun || happened_.has_value(); });
}

void Simulation::haunt(CheckedStore& store) {
  int64_t epoch = store.epoch();
  if (old_epoch_ && fibers_.chance(0.5)) {
    Outcome outcome = store.haunt(
        SubmitJob{.project = "ghost", .kind = JobKind::kBench, .spec = R"({"model":"m"})"}, *old_epoch_);
    if (outcome.ok()) world_.violate("a command of an older epoch was carried out");
  }
  old_epoch_ = epoch;
}

void Simulation::end_life() {
  if (life_ == nullptr) return;
  if (!*life_->dead) life_->stop();
  *life_->dead = true;
  life_.reset();
}

// The machine after a crash or an end, until the next start. Power may fail again meanwhile.
void Simulation::recover(TimePoint since) {
  do {
    if (happened_ == Crash::kPower) disk_.restart();
    if (happened_ == Crash::kProcess) disk_.go_on();
    happened_.reset();
    world_.may_crash = false;
    fibers_.sleep(fibers_.chance(0.1) ? fibers_.between(15, 30) : fibers_.between(0.1, 5));
  } while (happened_);
  if (fibers_.now() - since > kOrphan) machine_.end_all(143);
}

void Simulation::trouble_the_disk() {
  while (true) {
    fibers_.sleep(fibers_.between(10, 200));
    if (!world_.chaos) return;
    if (!fibers_.chance(0.3)) continue;
    world_.note("the disk is full");
    disk_.set_full(true);
    fibers_.sleep(fibers_.between(0.5, 10));
    disk_.set_full(false);
    world_.note("the disk has room");
  }
}

}  // namespace

SimulationResult simulate(const SimulationOptions& options, const std::string& folder) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/jobs");
  return Simulation(options, folder).run();
}

}  // namespace llm_dist::cluster::simulation
