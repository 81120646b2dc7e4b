// What layers issue, for tests of which calls that is.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops.h"

namespace llm_dist::parallel {

using Calls = std::vector<std::string>;

class CallNames : public kernels::OpObserver {
 public:
  void before(const kernels::OpCall& call, device::Stream&) override {
    names.push_back(call.name);
    rows.push_back(call.rows);
  }
  void after(const kernels::OpCall&, device::Stream&) override {}

  Calls names;
  std::vector<int64_t> rows;
};

}  // namespace llm_dist::parallel
