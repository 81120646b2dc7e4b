// What a CPU with fewer instructions than this one would compute.
#pragma once

#include "kernels/op_table.h"

namespace llm_dist::kernels {

// While it lives, the CPU ops of this process are those of AVX2, or of all that this CPU has.
class Instructions {
 public:
  explicit Instructions(bool avx2_only);
  ~Instructions();
  Instructions(const Instructions&) = delete;
  Instructions& operator=(const Instructions&) = delete;

  const OpTable& ops() const;

 private:
  bool avx2_only_;
};

}  // namespace llm_dist::kernels
