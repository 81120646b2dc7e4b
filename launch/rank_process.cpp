#include "launch/rank_process.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include "comm/agreement.h"
#include "comm/host_plane.h"
#include "comm/mapped_files.h"
#include "launch/common_terms.h"
#include "launch/exit_code.h"
#include "launch/idle.h"
#include "launch/placement.h"
#include "launch/profile_report.h"
#include "launch/shutdown_signal.h"
#include "launch/trace_file.h"
#include "launch/whole_file.h"
#include "src/base/exit_code.h"
#include "src/base/log_format.h"
#include "src/checkpoint/progress.h"
#include "src/engine/engine.h"
#include "src/model/layout.h"

namespace llm_dist::launch {
namespace {

constexpr int kFailureExitCode = 70;  // EX_SOFTWARE
constexpr double kAgreeSeconds = 600;
constexpr double kDrainSeconds = 60;
constexpr size_t kTracedSteps = 1 << 16;
constexpr size_t kProfiledOps = 1 << 20;
// Long enough for rank 0 to tell its clients, short enough for everybody to be out within three seconds.
constexpr auto kFarewell = std::chrono::milliseconds(300);
// When a rank dies its launcher ends all, and the watch, which takes LivenessOptions::settle to tell who was
// first, names that rank after the launcher's signal. Open MPI follows it with SIGKILL after a second.
constexpr auto kNamesBehindASignal = std::chrono::milliseconds(400);

std::string identity(const comm::World& world) {
  const comm::RankInfo& info = world.rank_info();
  const comm::HostInfo& host = world.hosts()[static_cast<size_t>(info.rank)];
  return format("rank {} host {} pid {}", info.rank, host.hostname, host.pid);
}

// The libraries that open sockets of their own take the same interface, unless they were told another.
void use_interface(const std::string& name) {
  if (name.empty()) return;
  for (const char* variable : {"NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"})
    setenv(variable, name.c_str(), /*overwrite=*/0);
}

DeviceCard card_of(const RankDevice& device) {
  if (device.device.type == DeviceType::kCpu) return {.name = "cpu", .description = {}};
  return {.name = format("cuda:{}", device.device.index), .description = device.backend->description()};
}

Status refuse_idle(const comm::World& world, const RankDevice& device) {
  std::string idle = idle_resources(world, comm::read_environment(), device.device.type == DeviceType::kCuda);
  if (idle.empty()) return ok_status();
  return failed_precondition(idle + ": use them, ask for fewer, or say --allow-idle");
}

// Wrong however often it is tried, unlike a port that is taken or a machine that is short of memory now.
bool is_configuration(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kUnimplemented: return true;
    default: return false;
  }
}

// Ends the process, without a destructor, where `status` is an error.
void leave_unless(const Status& status) {
  if (status.ok()) return;
  log_warning("leaving: {}", status.to_string());
  flush_log();
  _exit(1);
}

}  // namespace

Result<std::unique_ptr<RankProcess>> RankProcess::join(const EngineFlags& flags) {
  RETURN_IF_ERROR(apply_log_flags(flags));
  std::unique_ptr<RankProcess> process(new RankProcess());
  RETURN_IF_ERROR(process->connect(flags));
  return process;
}

RankProcess::~RankProcess() = default;

Status RankProcess::connect(const EngineFlags& flags) {
  const comm::BootstrapFlags& launch = flags.launch.bootstrap;
  ASSIGN_OR_RETURN(comm::Bootstrap bootstrap, comm::plan_bootstrap(launch, comm::read_environment()));
  use_interface(launch.interface_name);
  comm::WorldOptions options{.collective_timeout = duration_of(flags.parallel.distributed_timeout_seconds),
                             .meeting_timeout = duration_of(flags.launch.rendezvous_timeout_seconds)};
  rendezvous_ = bootstrap.ranks.size == 1 ? "none" : bootstrap.over_tcp ? "tcp" : "mpi";
  ASSIGN_OR_RETURN(world_, comm::make_world(bootstrap, options));
  set_process_identity(identity(*world_));
  ASSIGN_OR_RETURN(CpuShare share, take_share(*world_));
  resources_ = cpu_resources(*world_, share);
  if (flags.parallel.threads > 0) resources_.threads = flags.parallel.threads;
  if (size() == 1) return ok_status();
  const comm::HostWorld hosts = comm::host_world(*world_, launch.interface_name, duration_of(kAgreeSeconds));
  ASSIGN_OR_RETURN(channel_, comm::make_host_channel({.world = hosts}));
  ASSIGN_OR_RETURN(
      liveness_,
      comm::Liveness::start({.world = hosts, .on_failure = [this](const comm::RankFailure& failure) {
                               on_peer_failure(failure);
                             }}));
  hooks_.on_phase = [this](const char* phase) { liveness_->set_phase(phase); };
  liveness_->set_phase("loading");
  return ok_status();
}

// Every rank learns the first failing rank's error, so that all end for the same reason and one of them, rank
// 0, says it. What is not its own and not everybody's has to say whose it is.
Status RankProcess::agree(const Status& mine) {
  if (size() == 1) {
    agreed_on_error_ = !mine.ok();
    return mine;
  }
  std::string text = mine.ok() ? "" : std::to_string(static_cast<int>(mine.code())) + " " + mine.message();
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   world_->all_gather_bytes(text, Deadline::after_seconds(kAgreeSeconds)));
  const auto first = std::ranges::find_if(all, [](const std::string& theirs) { return !theirs.empty(); });
  if (first == all.end()) return ok_status();
  agreed_on_error_ = true;
  const size_t space = first->find(' ');
  const Status status(static_cast<StatusCode>(std::stoi(first->substr(0, space))), first->substr(space + 1));
  const auto failed = static_cast<size_t>(first - all.begin());
  if (failed == 0) return status;
  return status.with_context(format("rank {} on {}", failed, world_->hosts()[failed].hostname));
}

Status RankProcess::find_device(const EngineFlags& flags) {
  if (leads()) {
    RETURN_IF_ERROR(check_writable("--trace-file", flags.trace_file));
    RETURN_IF_ERROR(check_writable("--profile", flags.profile_file));
    RETURN_IF_ERROR(check_writable("--save-result", flags.result_file));
  }
  ASSIGN_OR_RETURN(device_, choose_device(flags, *world_, resources_.threads));
  return add_device_resources(device_, resources_);
}

Status RankProcess::take_device(const EngineFlags& flags) {
  RETURN_IF_ERROR(agree(find_device(flags)));
  if (size() == 1) return ok_status();
  ASSIGN_OR_RETURN(std::vector<std::string> packed, gathered(pack(card_of(device_))));
  std::vector<DeviceCard> cards;
  std::vector<std::string> names;
  for (const std::string& of_rank : packed) {
    cards.push_back(unpack_device_card(of_rank));
    names.push_back(cards.back().name);
  }
  liveness_->set_devices(std::move(names));
  RETURN_IF_ERROR(everywhere(refuse_shared_devices(cards)));
  // What activations are by default, which are the same everywhere.
  const bool bf16 = resources_.bf16_arithmetic;
  ASSIGN_OR_RETURN(std::vector<bool> all_have,
                   comm::agree(*world_, {bf16}, Deadline::after_seconds(kAgreeSeconds)));
  resources_.bf16_arithmetic = all_have[0];
  if (leads() && bf16 && !all_have[0]) log_info("not every rank's CPU multiplies bf16: none counts on it");
  return ok_status();
}

Status RankProcess::everywhere(Status status) {
  agreed_on_error_ = !status.ok();
  return status;
}

// Before memory is looked at, which each rank has its own amount of.
Status RankProcess::compare_terms() {
  if (size() == 1) return ok_status();
  Result<CommonTerms> terms = common_terms(resolved_.engine, *checkpoint_);
  RETURN_IF_ERROR(agree(terms.status()));
  ASSIGN_OR_RETURN(std::vector<std::string> packed, gathered(pack(*terms)));
  return everywhere(refuse_different_terms(packed, world_->hosts()));
}

Status RankProcess::open_model(const EngineFlags& flags) {
  ASSIGN_OR_RETURN(checkpoint::LoadFormat load_format,
                   checkpoint::parse_load_format(flags.model.load_format));
  ASSIGN_OR_RETURN(checkpoint_,
                   checkpoint::Checkpoint::open(flags.model.model, load_format, {.load_tokenizer = leads()}));
  if (leads() && wants_text_) {
    ASSIGN_OR_RETURN(TextModel text, make_text_model(*checkpoint_, flags.model));
    text_ = std::move(text);
  }
  return ok_status();
}

Status RankProcess::prepare(const EngineFlags& flags, bool sees_ops) {
  ASSIGN_OR_RETURN(resolved_, resolve(flags, *checkpoint_, resources_));
  const engine::EngineOptions& options = resolved_.engine;
  if (device_.device.type == DeviceType::kCuda && options.kv_dtype != options.dtype &&
      options.kv_dtype != DType::kF8E4M3)
    return invalid_argument(
        format("--kv-cache-dtype {} beside activations in {}: GPUs keep the cache as those, or in fp8",
               flags.memory.kv_cache_dtype,
               options.dtype));
  if (const std::string across = group_across_nodes(world_->hosts(), options.layout.tp);
      leads() && !across.empty())
    log_warning(
        "a tensor group spans nodes ({}), so that every layer waits for the network. Groups of {} "
        "would stay inside a node",
        across,
        ranks_per_node(world_->hosts()));
  if (leads() && std::ranges::any_of(flags.scheduler.cuda_graph_sizes,
                                     [&](int64_t size) { return size > options.max_decodes(); }))
    log_warning("--cuda-graph-sizes: none above {}, the most sequences that a step decodes",
                options.max_decodes());
  // A replay would hide its ops. Where kernels are tried out for replays, these have the same.
  graphs_dropped_ = sees_ops && !resolved_.engine.graph_sizes.empty();
  if (graphs_dropped_) {
    std::vector<int64_t> sizes = std::exchange(resolved_.engine.graph_sizes, {});
    if (resources_.prefers_graphs) resolved_.engine.tuned_sizes = std::move(sizes);
  }
  return ok_status();
}

Status RankProcess::load(const EngineFlags& flags, kernels::OpObserver* observer) {
  // A tokenizer of 128,000 tokens takes 0.7 s to build, GPUs take longer to be had.
  std::future<Status> model = std::async(std::launch::async, [&] { return open_model(flags); });
  RETURN_IF_ERROR(take_device(flags));
  RETURN_IF_ERROR(agree(model.get()));
  const bool sees_ops = observer != nullptr || !flags.profile_file.empty();
  RETURN_IF_ERROR(agree(prepare(flags, sees_ops)));
  RETURN_IF_ERROR(compare_terms());
  RETURN_IF_ERROR(agree(fit_memory(flags, *checkpoint_, *device_.ops, resources_, rank(), resolved_.engine)));
  if (!flags.launch.allow_idle) RETURN_IF_ERROR(agree(refuse_idle(*world_, device_)));
  hooks_.observer = observer;
  const engine::EngineOptions& options = resolved_.engine;
  if (leads()) {
    log_info("{} ranks as {} ({}); {} activations; {}",
             size(),
             to_string(options.layout),
             resolved_.layout_reason,
             options.dtype,
             device_.backend->description());
  }
  RETURN_IF_ERROR(start_traces(flags));
  // A bar is no line of JSON.
  std::optional<checkpoint::ProgressBar> bar;
  if (leads() && log_format() == LogFormat::kText) bar.emplace("loading weights");
  engine::RankEngineParts parts{.world = world_.get(),
                                .backend = device_.backend.get(),
                                .ops = device_.ops,
                                .checkpoint = checkpoint_.get(),
                                .hooks = hooks_};
  parts.make_communicator =
      [this](std::span<const int> world_ranks, const std::string& name, const comm::GroupUse& use) {
        return make_device_communicator(*world_, device_, world_ranks, name, use);
      };
  if (bar) parts.load_progress = [&bar](int64_t done, int64_t total) { bar->update(done, total); };
  ASSIGN_OR_RETURN(engine_, engine::RankEngine::create(parts, options));
  RETURN_IF_ERROR(note_library_files());
  // A thread has its own arena in glibc: what the thread that read the tokenizer freed would stay
  // resident.
  malloc_trim(0);
  if (!leads()) return ok_status();
  if (bar) bar->finish();
  const checkpoint::ReadStats& read = engine_->load_stats();
  log_info("weights: {} in {} s; KV cache: {} blocks of {} tokens, {}",
           engine::human_bytes(read.slice_bytes),
           read.seconds,
           engine_->options().num_blocks,
           options.block_size,
           engine::human_bytes(engine_->options().num_blocks * engine_->memory_plan().kv_block_bytes));
  return ok_status();
}

Status RankProcess::note_library_files() {
  if (size() == 1 || device_.device.type == DeviceType::kCpu) return ok_status();
  std::string mine;
  for (const std::string& file : comm::mapped_files(comm::kNcclSegmentPrefix)) mine += file + "\n";
  ASSIGN_OR_RETURN(std::vector<std::string> all, gathered(mine));
  const std::vector<comm::HostInfo>& hosts = world_->hosts();
  for (size_t peer = 0; peer < all.size(); ++peer) {
    if (hosts[peer].hostname != hosts[static_cast<size_t>(rank())].hostname) continue;
    std::istringstream files(all[peer]);
    for (std::string file; std::getline(files, file);) library_files_.push_back(file);
  }
  return ok_status();
}

Status RankProcess::start_traces(const EngineFlags& flags) {
  trace_file_ = flags.trace_file;
  profile_file_ = flags.profile_file;
  if (!trace_file_.empty()) {
    ASSIGN_OR_RETURN(trace_, engine::StepTrace::create(*device_.backend, kTracedSteps));
    hooks_.trace = trace_.get();
  }
  if (!profile_file_.empty()) {
    ASSIGN_OR_RETURN(profile_, engine::StepProfile::create(*device_.backend, kProfiledOps));
    hooks_.profile = profile_.get();
    if (hooks_.observer == nullptr) hooks_.observer = profile_.get();
  }
  return ok_status();
}

Result<std::vector<std::string>> RankProcess::gathered(const std::string& mine) {
  return world_->all_gather_bytes(mine, Deadline::after_seconds(kAgreeSeconds));
}

Status RankProcess::write_traces() {
  if (trace_ == nullptr && profile_ == nullptr) return ok_status();
  RETURN_IF_ERROR(engine_->runner().drain(Deadline::after_seconds(kDrainSeconds)));
  if (profile_ != nullptr) RETURN_IF_ERROR(write_profile());
  if (trace_ == nullptr) return ok_status();
  ASSIGN_OR_RETURN(std::vector<std::string> all, gathered(pack_spans(spans_of(trace_->steps()))));
  if (!leads()) return ok_status();
  return write_trace_file({.flag = "--trace-file", .path = trace_file_, .profile = {}, .prints_busy = true},
                          all);
}

Status RankProcess::write_profile() {
  std::vector<engine::ProfiledStep> steps = profile_->steps();
  ProfileNotes notes{.graphs_dropped = graphs_dropped_};
  ASSIGN_OR_RETURN(notes.timestamp_seconds, engine::timestamp_seconds(*device_.backend));
  ASSIGN_OR_RETURN(std::vector<std::string> profiles, gathered(pack_profile(steps, notes)));
  ASSIGN_OR_RETURN(std::vector<std::string> spans, gathered(pack_spans(spans_of(shown_steps(steps)))));
  if (!leads()) return ok_status();
  std::fputs(describe_profiles(profiles).c_str(), stderr);
  return write_trace_file({.flag = "--profile", .path = profile_file_, .profile = merge_profiles(profiles)},
                          spans);
}

Status RankProcess::follow() {
  return engine::follow_plans(*engine_, *channel_, [] { return false; });
}

void RankProcess::on_peer_failure(comm::RankFailure failure) {
  // To people a host is its name; that hosts share memory only under one boot id is for the machines.
  failure.host.resize(std::min(failure.host.find('/'), failure.host.size()));
  std::string line = comm::format_failure(failure);
  // On a line of its own: a stream of text or a progress bar may stand half written, and not by this rank.
  const bool first = !cause_is_told_.exchange(true);
  if (first && failure.reporter && failure.signal == 0) announce(line, /*fresh_line=*/true);
  tell_clients(unavailable(line));
  exit_after_failure(failure.signal != 0 ? kSignalExitBase + failure.signal : kFailureExitCode);
}

void RankProcess::give_up(const Status& cause) {
  log_debug("giving up: {}", cause.to_string());
  if (liveness_ == nullptr) {
    announce(cause.to_string());
    tell_clients(cause);
    exit_after_failure(kFailureExitCode);
  }
  // A peer's death shows here first as a failed collective: give the watch time to find the culprit, whose
  // name is the better cause. It ends this process.
  StatusCode code = cause.code();
  bool perhaps_a_peer =
      code == StatusCode::kUnavailable || code == StatusCode::kAborted || code == StatusCode::kInternal;
  if (perhaps_a_peer) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  liveness_->announce_failure(cause.to_string());
  std::this_thread::sleep_for(std::chrono::seconds(2));
  exit_after_failure(kFailureExitCode);
}

void RankProcess::announce_end(const std::string& why, int signal) {
  if (liveness_ != nullptr) std::this_thread::sleep_for(kNamesBehindASignal);
  if (cause_is_told_.exchange(true)) {
    std::this_thread::sleep_for(std::chrono::seconds(2));  // on_peer_failure() ends this process
    return;
  }
  announce(why, /*fresh_line=*/true);
  if (liveness_ != nullptr) liveness_->announce_failure(why, signal);
}

void RankProcess::give_up_from(const Status& cause) {
  std::thread([this, cause] { give_up(cause); }).detach();
}

void RankProcess::tell_clients(const Status& cause) {
  std::lock_guard lock(on_failure_mutex_);
  if (on_failure_) on_failure_(cause);
}

void RankProcess::exit_after_failure(int code) {
  std::this_thread::sleep_for(kFarewell);
  flush_log();
  for (const std::string& file : library_files_) unlink(file.c_str());
  // No destructors: they would wait for collectives that never end.
  _exit(code);
}

void RankProcess::leave() {
  if (liveness_ != nullptr) liveness_->leave();
  // Without an end, what still runs would be waited for by whoever frees what it uses, and nobody watches.
  if (engine_ != nullptr) leave_unless(engine_->finish());
  engine_.reset();
  channel_.reset();
  liveness_.reset();
  leave_unless(world_->close(Deadline::after_seconds(10)));
}

int end(RankProcess& process, Status status, ShutdownSignal* signal) {
  if (status.ok()) status = process.write_traces();
  if (signal != nullptr) signal->set_farewell(nullptr);
  if (!status.ok() && process.size() > 1 && !process.agreed_on_error()) process.give_up(status);
  int code = report(&process, status);
  process.leave();
  return code;
}

void end_at_once(RankProcess& process, Status status, ShutdownSignal* signal) {
  const int code = end(process, std::move(status), signal);
  flush_log();
  _exit(code);
}

int report(const RankProcess* process, const Status& status) {
  if (status.ok()) return 0;
  if (process == nullptr || process->leads()) announce(status.message());
  return process != nullptr && process->agreed_on_error() && is_configuration(status) ? kRefusedExitCode : 1;
}

}  // namespace llm_dist::launch
