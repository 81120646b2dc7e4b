// What an all-reduce of bf16 takes in a graph, over NCCL and each way over peer memory, and what it takes
// with the norm behind it: apart, in one kernel, and in one kernel where ranks share the residual stream; and
// what exchanges of parts and messages take. The tables from which the limits in comm/p2p/peer_limits.cpp
// come. And what a product of many rows takes that stores them at the ranks, or hands them. A thread for each
// GPU: comm_p2p_bench [RANKS [ways|norms|shares|products|handed|parts|messages]]
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>

#include "comm/nccl_groups.h"
#include "comm/norm_reducer.h"
#include "comm/p2p_groups.h"
#include "comm/thread/thread_world.h"
#include "tests/comm/gpu_ranks.h"

namespace llm_dist::comm {
namespace {

constexpr int64_t kLeastBytes = 2 << 10;
constexpr int64_t kMostBytes = 16 << 20;
constexpr int64_t kMostRows = 256;
constexpr int64_t kLeastSharedRows = 256;
constexpr int64_t kMostSharedRows = 4096;
constexpr int64_t kMostHidden = 8192;
constexpr int64_t kLeastPart = 8;
// Of packets: above, they are slower than all else, and their memory is twice as large.
constexpr int64_t kMostPartOfPackets = 1 << 20;

// The rows of a shared call twice, and weights behind them; or all parts twice.
int64_t data_bytes(int size) {
  return std::max(2 * kMostSharedRows * kMostHidden * 2 + kMostHidden * 2, 2 * size * kMostBytes);
}
constexpr int kCallsInGraph = 64;
constexpr int kReplays = 41;
constexpr double kSeconds = 60;

struct Way {
  const char* name;
  PeerLimits limits;
};
constexpr Way kWays[] = {{"NCCL", {}},
                         {"packets", {.packets_bytes = kMostBytes}},
                         {"one shot", {.one_shot_bytes = kMostBytes}},
                         {"two shots", {.two_shot_bytes = kMostBytes}}};

void must(const Status& status) { CHECK(status.ok(), "{}", status.to_string()); }

// Of one rank.
struct Bench {
  World& world;
  device::Backend& backend;
  device::Stream& stream;
  device::Buffer data;
  device::Buffer marks;  // pinned
};

// Median microseconds of what issue() issues. Ranks of one process share the driver's locks: a rank that
// waits for room in its queue can keep the others from issuing what it waits for. So one graph is under way
// at a time.
double measure(Bench& bench, const std::function<void()>& issue) {
  issue();
  must(bench.stream.synchronize(Deadline::after_seconds(kSeconds)));
  bench.backend.begin_capture(bench.stream);
  for (int i = 0; i < kCallsInGraph; ++i) issue();
  std::unique_ptr<device::Graph> graph = bench.backend.end_capture(bench.stream).value();
  auto* marks = reinterpret_cast<int64_t*>(bench.marks.data());
  std::vector<double> times;
  for (int replay = 0; replay <= kReplays; ++replay) {
    must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
    issue();  // the ranks start together behind it
    bench.stream.write_timestamp(marks);
    graph->launch(bench.stream);
    bench.stream.write_timestamp(marks + 1);
    must(bench.stream.synchronize(Deadline::after_seconds(kSeconds)));
    if (replay > 0) times.push_back(1e-3 * static_cast<double>(marks[1] - marks[0]) / kCallsInGraph);
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void print_row(int64_t rows, std::span<const double> times) {
  std::printf("%10lld", static_cast<long long>(rows));
  for (double time : times) std::printf(" %10.2f", time);
  std::printf("\n");
}

void compare_ways(Bench& bench, std::span<const int> ranks, bool prints) {
  std::vector<std::unique_ptr<Communicator>> groups;
  const int rank = bench.world.rank_info().rank;
  for (const Way& way : kWays)
    groups.push_back(make_p2p_communicator(bench.world, ranks, way.name, rank, way.limits).value());
  if (prints) std::printf("%10s", "bytes");
  for (const Way& way : kWays)
    if (prints) std::printf(" %10s", way.name);
  if (prints) std::printf("   us in a graph, %zu GPUs\n", ranks.size());
  for (int64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    Tensor tensor = bench.data.view(DType::kBF16, {bytes / 2});
    if (prints) std::printf("%10lld", static_cast<long long>(bytes));
    for (const auto& group : groups) {
      double time = measure(bench, [&] { group->all_reduce(tensor, ReduceOp::kSum, bench.stream); });
      if (prints) std::printf(" %10.2f", time);
    }
    if (prints) std::printf("\n");
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

// All-reduce, then add_rms_norm; and both in one.
void compare_norms(const kernels::CudaModule& module,
                   Bench& bench,
                   std::span<const int> ranks,
                   int64_t hidden,
                   bool prints) {
  const int64_t most_bytes = kMostRows * hidden * 2;
  PeerLimits limits = default_peer_limits(static_cast<int>(ranks.size()), {});
  limits.norm_bytes = most_bytes;
  std::unique_ptr<kernels::OpState> state =
      module.ops->make_state(bench.backend, {.max_tokens = kMostRows, .max_features = hidden}).value();
  auto group =
      make_p2p_communicator(bench.world, ranks, "norms", bench.world.rank_info().rank, limits).value();
  auto& reducer = dynamic_cast<NormReducer&>(*group);
  const Tensor weight = bench.data.view(DType::kBF16, {hidden}, 2 * most_bytes);
  if (prints)
    std::printf("%10s %10s %10s   us in a graph, rows of %lld, %zu GPUs\n",
                "rows",
                "apart",
                "one kernel",
                static_cast<long long>(hidden),
                ranks.size());
  for (int64_t rows = 1; rows <= kMostRows; rows *= 2) {
    const Tensor x = bench.data.view(DType::kBF16, {rows, hidden});
    const Tensor residual = bench.data.view(DType::kBF16, {rows, hidden}, most_bytes);
    double apart = measure(bench, [&] {
      group->all_reduce(x, ReduceOp::kSum, bench.stream);
      module.ops->add_rms_norm(
          *state, bench.stream, {.x = x, .residual = residual, .weight = weight, .out = x});
    });
    double fused = measure(bench, [&] {
      reducer.all_reduce_add_rms_norm({.x = x, .residual = residual, .weight = weight, .out = x},
                                      bench.stream);
    });
    if (prints) print_row(rows, std::array{apart, fused});
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

// All-reduce, then add_rms_norm, both of all rows; and in one kernel, with a share of the residual stream.
void compare_shares(const kernels::CudaModule& module,
                    Bench& bench,
                    std::span<const int> ranks,
                    int64_t hidden,
                    bool prints) {
  const auto size = static_cast<int64_t>(ranks.size());
  const int64_t most_bytes = kMostSharedRows * hidden * 2;
  std::unique_ptr<kernels::OpState> state =
      module.ops->make_state(bench.backend, {.max_tokens = kMostSharedRows, .max_features = hidden}).value();
  const PeerLimits limits = default_peer_limits(static_cast<int>(ranks.size()), {.shared_bytes = most_bytes});
  auto group =
      make_p2p_communicator(bench.world, ranks, "shares", bench.world.rank_info().rank, limits).value();
  auto& reducer = dynamic_cast<NormReducer&>(*group);
  const Tensor weight = bench.data.view(DType::kBF16, {hidden}, 2 * most_bytes);
  if (prints)
    std::printf("%10s %10s %10s   us in a graph, rows of %lld, %zu GPUs\n",
                "rows",
                "apart",
                "shares",
                static_cast<long long>(hidden),
                ranks.size());
  for (int64_t wanted = kLeastSharedRows; wanted <= kMostSharedRows; wanted *= 2) {
    const int64_t rows = wanted / size * size;
    const Tensor x = bench.data.view(DType::kBF16, {rows, hidden});
    const Tensor residual = bench.data.view(DType::kBF16, {rows, hidden}, most_bytes);
    double apart = measure(bench, [&] {
      group->all_reduce(x, ReduceOp::kSum, bench.stream);
      module.ops->add_rms_norm(
          *state, bench.stream, {.x = x, .residual = residual, .weight = weight, .out = x});
    });
    double shares = measure(bench, [&] {
      reducer.add_rms_norm_of_shares({.residual = residual.rows(0, rows / size),
                                      .weight = weight,
                                      .out = reducer.shared_out(rows, hidden, DType::kBF16)},
                                     bench.stream);
    });
    if (prints) print_row(rows, std::array{apart, shares});
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

// `count` elements of bf16: what is multiplied takes power as weights do.
device::Buffer random_values(Bench& bench, int64_t count, int seed) {
  constexpr int64_t kValues = 1 << 20;
  device::Buffer values = bench.backend.allocate(2 * count, device::MemoryKind::kDevice).value();
  const device::Buffer random = bench.backend.allocate(2 * kValues, device::MemoryKind::kPinned).value();
  std::mt19937 generator(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal(0, 0.02f);
  for (int64_t i = 0; i < kValues; ++i)
    reinterpret_cast<BFloat16*>(random.data())[i] = from_float<BFloat16>(normal(generator));
  for (int64_t at = 0; at < count; at += kValues) {
    const int64_t some = std::min(kValues, count - at);
    bench.stream.copy(values.view(DType::kBF16, {some}, 2 * at), random.view(DType::kBF16, {some}));
  }
  must(bench.stream.synchronize(Deadline::after_seconds(kSeconds)));
  return values;
}

// A row-parallel product of an 8B's layers: as one, whose kernel is the library's first guess; in shares that
// all stay at home, and that go to the ranks; and with the norm of shares behind it.
void compare_products(const kernels::CudaModule& module,
                      Bench& bench,
                      std::span<const int> ranks,
                      int64_t features,
                      bool prints) {
  constexpr int64_t kHidden = 4096;
  const auto size = static_cast<int>(ranks.size());
  const int rank = bench.world.rank_info().rank;
  const int64_t k = features / size;
  std::unique_ptr<kernels::OpState> state =
      module.ops
          ->make_state(bench.backend, {.max_tokens = kMostSharedRows, .max_features = std::max(k, kHidden)})
          .value();
  const PeerLimits limits = default_peer_limits(size, {.shared_bytes = kMostSharedRows * kHidden * 2});
  auto group = make_p2p_communicator(bench.world, ranks, "products", rank, limits).value();
  auto& reducer = dynamic_cast<NormReducer&>(*group);
  reducer.hand_terms();
  const int64_t values = kMostSharedRows * k + kHidden * k;
  const device::Buffer inputs = random_values(bench, values, rank);
  const device::Buffer outputs =
      bench.backend.allocate(4 * kMostSharedRows * kHidden, device::MemoryKind::kDevice).value();
  Weight weight{.scheme = WeightScheme::kBF16, .n = kHidden, .k = k};
  weight.parts[0] = inputs.view(DType::kU8, {kHidden, k * 2}, kMostSharedRows * k * 2);
  const Tensor norm_weight = inputs.view(DType::kBF16, {kHidden});
  if (prints)
    std::printf("%10s %10s %10s %10s %10s   us in a graph, [rows, %lld] by [%lld, %lld], %d GPUs\n",
                "rows",
                "one",
                "at home",
                "at ranks",
                "and norm",
                static_cast<long long>(k),
                static_cast<long long>(kHidden),
                static_cast<long long>(k),
                size);
  for (int64_t wanted = kLeastSharedRows; wanted <= kMostSharedRows; wanted *= 2) {
    const int64_t share = wanted / size;
    const int64_t rows = share * size;
    const Tensor x = inputs.view(DType::kBF16, {rows, k});
    const Tensor out = outputs.view(DType::kBF16, {rows, kHidden});
    const Tensor residual = outputs.view(DType::kBF16, {share, kHidden}, kMostSharedRows * kHidden * 2);
    kernels::LinearSharesParams home{
        .x = x, .weight = weight, .bias = {}, .outs = {}, .num_outs = size, .first = (rank + 1) % size};
    kernels::LinearSharesParams away = home;
    for (int i = 0; i < size; ++i) {
      home.outs[static_cast<size_t>(i)] = out.rows(i * share, share);
      away.outs[static_cast<size_t>(i)] = reducer.shared_term(i, rows, kHidden, DType::kBF16);
    }
    const double times[] = {
        measure(bench, [&] { module.ops->linear(*state, bench.stream, {x, weight, {}, out}); }),
        measure(bench, [&] { module.ops->linear_shares(*state, bench.stream, home); }),
        measure(bench, [&] { module.ops->linear_shares(*state, bench.stream, away); }),
        measure(bench, [&] {
          module.ops->linear_shares(*state, bench.stream, away);
          reducer.add_rms_norm_of_shares({.residual = residual,
                                          .weight = norm_weight,
                                          .out = reducer.shared_out(rows, kHidden, DType::kBF16)},
                                         bench.stream);
        })};
    if (prints) print_row(rows, times);
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

// A column-parallel product of an 8B's layers and the norm of shares in front of it, whose rows cross the
// link: alone, with all rows there; behind a norm that stores its rows at all ranks; and handing rows that
// the norm has kept. Beside it what their way alone takes: gathered by a kernel,
// and copied to the ranks one after the other by what the device has for that.
void compare_handed(const kernels::CudaModule& module,
                    Bench& bench,
                    std::span<const int> ranks,
                    int64_t all_columns,
                    bool prints) {
  constexpr int64_t kHidden = 4096;
  constexpr int64_t kRowBytes = 2 * kHidden;
  const auto size = static_cast<int>(ranks.size());
  const int rank = bench.world.rank_info().rank;
  const int64_t n = all_columns / size;
  std::unique_ptr<kernels::OpState> state =
      module.ops->make_state(bench.backend, {.max_tokens = kMostSharedRows, .max_features = kHidden}).value();
  const PeerLimits limits = default_peer_limits(size, {.shared_bytes = kMostSharedRows * kRowBytes});
  auto group = make_p2p_communicator(bench.world, ranks, "handed", rank, limits).value();
  auto& reducer = dynamic_cast<NormReducer&>(*group);
  reducer.hand_terms();
  const device::Buffer inputs = random_values(bench, n * kHidden, rank);
  Weight weight{.scheme = WeightScheme::kBF16, .n = n, .k = kHidden};
  weight.parts[0] = inputs.view(DType::kU8, {n, kRowBytes});
  const Tensor norm_weight = inputs.view(DType::kBF16, {kHidden});
  const device::Buffer outputs =
      bench.backend.allocate(2 * kMostSharedRows * n, device::MemoryKind::kDevice).value();
  const device::Buffer streams =
      bench.backend.allocate(2 * kMostSharedRows * kRowBytes, device::MemoryKind::kDevice).value();
  if (prints)
    std::printf("%10s %10s %10s %10s %10s %10s %10s   us in a graph, [rows, %lld] by [%lld, %lld], %d GPUs\n",
                "rows",
                "product",
                "norm",
                "both",
                "handed",
                "gathered",
                "copied",
                static_cast<long long>(kHidden),
                static_cast<long long>(n),
                static_cast<long long>(kHidden),
                size);
  for (int64_t rows = size * kernels::kHandedRows; rows <= kMostSharedRows; rows *= 2) {
    const int64_t share = rows / size;
    const Tensor x = reducer.shared_out(rows, kHidden, DType::kBF16);
    const Tensor y = outputs.view(DType::kBF16, {rows, n});
    const Tensor residual = streams.view(DType::kBF16, {share, kHidden});
    const Tensor all = streams.view(DType::kBF16, {rows, kHidden}, kMostSharedRows * kRowBytes);
    CHECK(module.ops->hands_rows(*state, weight, false, DType::kBF16, size), "nobody hands rows");
    auto norm = [&](bool kept) {
      reducer.add_rms_norm_of_shares({.residual = residual, .weight = norm_weight, .out = x, .kept = kept},
                                     bench.stream);
    };
    const kernels::LinearParams product{.x = x, .weight = weight, .bias = {}, .out = y};
    auto multiply = [&] { module.ops->linear(*state, bench.stream, product); };
    // Of this rank's rows, in the memory of the `next`-th rank behind this one.
    auto place_at = [&](int next) {
      const device::HandedRows handed = reducer.handed_rows(rows, kHidden, DType::kBF16, false);
      return Tensor::contiguous(handed.rows[(rank + next) % size] + rank * handed.share_bytes,
                                DType::kBF16,
                                {share, kHidden},
                                residual.device);
    };
    auto hand = [&] {
      norm(true);
      const device::HandedRows handed = reducer.handed_rows(rows, kHidden, DType::kBF16, false);
      module.ops->linear_of_handed(*state, bench.stream, product, handed);
    };
    const double times[] = {measure(bench, multiply),
                            measure(bench, [&] { norm(false); }),
                            measure(bench,
                                    [&] {
                                      norm(false);
                                      multiply();
                                    }),
                            measure(bench, hand),
                            measure(bench, [&] { group->all_gather(residual, all, bench.stream); }),
                            measure(bench, [&] {
                              for (int i = 1; i < size; ++i) bench.stream.copy(place_at(i), residual);
                            })};
    if (prints) print_row(rows, times);
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

// Gathers, reduce-scatters and all-to-alls, by the bytes of a part.
void compare_parts(Bench& bench, std::span<const int> ranks, bool prints) {
  const auto size = static_cast<int64_t>(ranks.size());
  const Way ways[] = {{"NCCL", {}},
                      {"packets", {.packets_bytes = kMostPartOfPackets}},
                      {"one shot", {.parts_bytes = size * kMostBytes}}};
  std::vector<std::unique_ptr<Communicator>> groups;
  const int rank = bench.world.rank_info().rank;
  for (const Way& way : ways)
    groups.push_back(make_p2p_communicator(bench.world, ranks, way.name, rank, way.limits).value());
  const auto call = [&](const char* what, auto issue) {
    if (prints)
      std::printf("%10s %10s %10s %10s   us in a graph, %s", "bytes", "NCCL", "packets", "one shot", what);
    if (prints) std::printf(", %zu GPUs\n", ranks.size());
    for (int64_t bytes = kLeastPart; bytes <= kMostBytes; bytes *= 2) {
      const int64_t count = bytes / 2;
      const Tensor part = bench.data.view(DType::kBF16, {count});
      const Tensor parts = bench.data.view(DType::kBF16, {size * count}, size * kMostBytes);
      const Tensor other_parts = bench.data.view(DType::kBF16, {size * count});
      if (prints) std::printf("%10lld", static_cast<long long>(bytes));
      for (size_t way = 0; way < groups.size(); ++way) {
        const bool too_large = ways[way].limits.packets_bytes > 0 && bytes > kMostPartOfPackets;
        if (too_large && prints) std::printf(" %10s", "-");
        if (too_large) continue;
        double time = measure(bench, [&] { issue(*groups[way], part, parts, other_parts); });
        if (prints) std::printf(" %10.2f", time);
      }
      if (prints) std::printf("\n");
    }
  };
  call("all_gather", [&](Communicator& group, const Tensor& part, const Tensor& parts, const Tensor&) {
    group.all_gather(part, parts, bench.stream);
  });
  call("reduce_scatter", [&](Communicator& group, const Tensor& part, const Tensor& parts, const Tensor&) {
    group.reduce_scatter(parts, part, ReduceOp::kSum, bench.stream);
  });
  call("all_to_all", [&](Communicator& group, const Tensor&, const Tensor& parts, const Tensor& other) {
    group.all_to_all(parts, other, bench.stream);
  });
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

// There and back between the first two ranks, by the bytes of a message; a time is that of one way.
void compare_messages(Bench& bench, std::span<const int> ranks, bool prints) {
  const Way ways[] = {
      {"NCCL", {}},
      {"packets", {.message_bytes = kMostPartOfPackets, .message_packets_bytes = kMostPartOfPackets}},
      {"staged", {.message_bytes = kMostBytes}}};
  const int rank = bench.world.rank_info().rank;
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const Way& way : ways)
    groups.push_back(make_p2p_communicator(bench.world, ranks, way.name, rank, way.limits).value());
  if (prints)
    std::printf("%10s %10s %10s %10s   us in a graph, a message\n", "bytes", "NCCL", "packets", "staged");
  for (int64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    const Tensor out = bench.data.view(DType::kBF16, {bytes / 2});
    const Tensor in = bench.data.view(DType::kBF16, {bytes / 2}, kMostBytes);
    if (prints) std::printf("%10lld", static_cast<long long>(bytes));
    for (size_t way = 0; way < groups.size(); ++way) {
      const bool too_large = ways[way].limits.message_packets_bytes > 0 && bytes > kMostPartOfPackets;
      if (too_large && prints) std::printf(" %10s", "-");
      if (too_large) continue;
      double there_and_back = measure(bench, [&] {
        if (rank == 0) groups[way]->send(out, 1, bench.stream);
        if (rank < 2) groups[way]->recv(in, 1 - rank, bench.stream);
        if (rank == 1) groups[way]->send(out, 0, bench.stream);
      });
      if (prints) std::printf(" %10.2f", there_and_back / 2);
    }
    if (prints) std::printf("\n");
  }
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
}

void run_rank(const kernels::CudaModule& module,
              ThreadWorld& threads,
              int rank,
              std::string_view wanted_table) {
  std::unique_ptr<World> world = threads.join(rank);
  std::unique_ptr<device::Backend> backend = module.make_backend(rank).value();
  std::unique_ptr<device::Stream> stream = backend->make_stream("bench");
  Bench bench{*world,
              *backend,
              *stream,
              backend->allocate(data_bytes(world->rank_info().size), device::MemoryKind::kDevice).value(),
              backend->allocate(4096, device::MemoryKind::kPinned).value()};
  std::vector<int> ranks(static_cast<size_t>(world->rank_info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const bool prints = rank == 0;
  auto wants = [&](std::string_view table) { return wanted_table.empty() || wanted_table == table; };
  if (wants("ways")) compare_ways(bench, ranks, prints);
  for (int64_t hidden : {int64_t{4096}, kMostHidden})
    if (wants("norms")) compare_norms(module, bench, ranks, hidden, prints);
  for (int64_t hidden : {int64_t{4096}, kMostHidden})
    if (wants("shares")) compare_shares(module, bench, ranks, hidden, prints);
  for (int64_t features : {4096, 14336})
    if (wants("products")) compare_products(module, bench, ranks, features, prints);
  for (int64_t columns : {6144, 28672})
    if (wants("handed")) compare_handed(module, bench, ranks, columns, prints);
  if (wants("parts")) compare_parts(bench, ranks, prints);
  if (wants("messages")) compare_messages(bench, ranks, prints);
}

int run(int wanted, std::string_view wanted_table) {
  const kernels::CudaModule* module = cuda_module().value();
  int size = wanted > 0 ? wanted : std::min(module->visible_devices(), kMaxPeerRanks);
  if (size < 2 || size > module->visible_devices()) {
    std::printf("skipped: %d GPUs are visible\n", module->visible_devices());
    return kSkipped;
  }
  ThreadWorld threads(size, {.collective_timeout = std::chrono::seconds(60)});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] { run_rank(*module, threads, rank, wanted_table); });
  for (std::thread& rank : ranks) rank.join();
  return 0;
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) {
  return llm_dist::comm::run(argc > 1 ? std::atoi(argv[1]) : 0, argc > 2 ? argv[2] : "");
}
