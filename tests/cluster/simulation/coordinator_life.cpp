#include "tests/cluster/simulation/coordinator_life.h"

#include "cluster/api/api_reply.h"
#include "cluster/store/sqlite_store.h"

namespace llm_dist::cluster::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kMaxFileBytes = 100'000;

// The times of hours and minutes are seconds here: what follows from their order stays.
constexpr SupervisorOptions kSupervision{.stable_us = 20 * kSecondUs,
                                         .backoff_us = kSecondUs,
                                         .max_backoff_us = 4 * kSecondUs,
                                         .start_timeout_us = 30 * kSecondUs,
                                         .unresponsive_us = 5 * kSecondUs,
                                         .drain_seconds = 5,
                                         .kill_after_us = 5 * kSecondUs};
constexpr BatchRunOptions kBatches{
    .concurrency = 3, .item_timeout = seconds(20), .backoff = milliseconds(250), .max_backoff = seconds(4)};
constexpr auto kBetweenLooks = seconds(2);
constexpr int64_t kKeepUs = 120 * kSecondUs;  // jobs that have ended

}  // namespace

Result<std::unique_ptr<CoordinatorLife>> CoordinatorLife::begin(const Place& place) {
  Result<std::unique_ptr<Store>> store = open_sqlite_store(
      {.path = "store", .vfs = place.disk.name(), .pause = [&world = place.world](Duration time) {
         world.await(time);
       }});
  if (!store.ok()) return store.status();
  auto checked =
      std::make_unique<CheckedStore>(place.world, place.ledger, place.disk, std::move(store).value());
  std::unique_ptr<CoordinatorLife> life(new CoordinatorLife(place, std::move(checked)));
  RETURN_IF_ERROR(life->contents_.prepare());
  ASSIGN_OR_RETURN(std::vector<std::string> known, life->store_->batches().contents());
  life->contents_.sweep(known);
  return life;
}

void CoordinatorLife::handle(http::Request request, std::shared_ptr<http::ResponseWriter> writer) {
  if (FilesApi::is_upload(request)) {
    request.sink = files_api_.admit(request).sink;
    (void)request.sink->write(std::exchange(request.body, ""));
  }
  router_(std::move(request), std::move(writer));
}

void CoordinatorLife::go() {
  World& world = place_.world;
  auto now_us = [&world] { return world.now_us(); };
  auto commit = [this, now_us](CommandBody body) { return commit_.commit(now_us(), std::move(body)); };
  auto enqueue = [this, now_us](CommandBody body, GroupCommit::Done done) {
    commit_.enqueue(now_us(), std::move(body), std::move(done));
  };
  caretaker_.start({.supervisor = {.store = *store_,
                                   .commit = commit,
                                   .launcher = place_.machine,
                                   .watch = *watch_,
                                   .catalogue = catalogue_,
                                   .places = {.store_path = "store",
                                              .folder = place_.folder + "/jobs",
                                              .url = "http://coordinator"},
                                   .secrets = secrets_,
                                   .now_us = now_us,
                                   .steady_now = [this] { return fibers_->now(); },
                                   .options = kSupervision},
                    .batches = {.store = *store_,
                                .commit = commit,
                                .enqueue = enqueue,
                                .contents = contents_,
                                .secrets = secrets_,
                                .wake = {},
                                .options = kBatches,
                                .threads = fibers_,
                                .connect = [this] { return make_item_client(place_.machine); },
                                .seed = world.options.seed},
                    .retention = {.store = *store_,
                                  .commit = commit,
                                  .attempts_folder = place_.folder + "/jobs",
                                  .keep_us = place_.removes_old_jobs ? kKeepUs : 0,
                                  .now_us = now_us},
                    .between_looks = kBetweenLooks,
                    .between_removals = Duration::zero(),
                    .on_error = [&world](const char* what, const Status& status) {
                      world.note("{}: {}", what, status.message());
                    }});
}

CoordinatorLife::CoordinatorLife(const Place& place, std::unique_ptr<CheckedStore> store)
    : place_(place),
      fibers_(place.world.fibers),
      store_(std::move(store)),
      catalogue_({{"m", {.path = "/m.gguf", .max_ranks = 8}}}),
      contents_(place.folder + "/files"),
      watch_(make_watch(place.machine)),
      caretaker_(fibers_),
      feed_(*store_, fibers_),
      jobs_api_({.store = *store_,
                 .commit = commit_,
                 .feed = feed_,
                 .workers = workers_,
                 .catalogue = catalogue_,
                 .secrets = secrets_,
                 .access = access_,
                 .now_us = [this] { return place_.world.now_us(); }}),
      replicas_api_({.store = *store_,
                     .commit = commit_,
                     .workers = workers_,
                     .now_us = [this] { return place_.world.now_us(); }}),
      files_api_({.store = *store_,
                  .commit = commit_,
                  .workers = file_workers_,
                  .contents = contents_,
                  .max_file_bytes = kMaxFileBytes,
                  .now_us = [this] { return place_.world.now_us(); }}),
      batches_api_({.store = *store_,
                    .commit = commit_,
                    .workers = file_workers_,
                    .contents = contents_,
                    .catalogue = catalogue_,
                    .now_us = [this] { return place_.world.now_us(); }}),
      workers_(2, 4096, fibers_),
      file_workers_(1, 4096, fibers_),
      commit_(*store_,
              {.on_changed =
                   [this](const std::vector<JobId>& jobs) {
                     feed_.changed(jobs);
                     caretaker_.wake();
                   },
               .threads = fibers_}),
      router_(render_http_error) {
  add_routes();
}

CoordinatorLife::~CoordinatorLife() {
  stop();
  workers_.stop();
  file_workers_.stop();
}

void CoordinatorLife::add_routes() {
  jobs_api_.add_routes(router_);
  replicas_api_.add_routes(router_);
  files_api_.add_routes(router_);
  batches_api_.add_routes(router_);
}

}  // namespace llm_dist::cluster::simulation
