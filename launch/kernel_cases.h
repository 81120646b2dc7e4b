// The ops of one step, recorded as they were issued, to be issued again one kind at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "launch/op_cost.h"
#include "launch/stream_timer.h"

namespace llm_dist::launch {

template <typename Pointers>
struct ValuesOf;
template <typename... Params>
struct ValuesOf<std::variant<std::monostate, const Params*...>> {
  using type = std::variant<std::monostate, Params...>;
};
// An op's parameters by value; they hold views only.
using OpValues = ValuesOf<kernels::OpParams>::type;

// One kind of op at one shape.
struct KernelCase {
  std::string label;  // "add_rms_norm", "linear 960x576" (n × k on this rank)
  int64_t rows = 0;
  OpCost cost;                  // of a call, the mean
  std::vector<OpValues> calls;  // of a step; usually one a layer, each with weights and cache of its own
  bool planned = false;         // by the host for each step: never part of a graph
};

// Records what is issued while it is on; collectives and copies are no cases.
class KernelRecorder : public kernels::OpObserver {
 public:
  void begin();
  void end() { on_ = false; }
  // In the order in which a step first issues them.
  std::vector<KernelCase> take() { return std::move(cases_); }

  void before(const kernels::OpCall& call, device::Stream& stream) override;
  void after(const kernels::OpCall&, device::Stream&) override {}

 private:
  bool on_ = false;
  OpCosts costs_;
  std::vector<KernelCase> cases_;
};

// Seconds of one call, as steps issue it: from a graph where the device prefers graphs. Calls go round over
// the step's own, so that each meets the weights and the cache of the layer after the one before it. A step's
// other weights lie between two uses of the same ones, and a few layers' share of them may fit a cache that
// the whole would not fit: weights get further copies until all of a case's are `footprint_bytes` together.
Result<double> time_case(const kernels::Ops& ops,
                         StreamTimer& timer,
                         const KernelCase& kernel,
                         int64_t footprint_bytes);

}  // namespace llm_dist::launch
