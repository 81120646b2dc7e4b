// Matmul: y = x · Wᵀ (+ bias), gated or not, by cuBLASLt or by a kernel of ours: one for few rows of x, and
// one for many. Which kernel for the others: the fastest of those tried where tuning is on or was on in an
// earlier run, for this number of rows or for a few more, otherwise the first guess.
//
// Weights in f8_e4m3: rows of x are quantized, too, by the library's kernels and by ours, but of up to
// kMostRowsInParts rows ours split x into 8-bit floats that add up to it; and where neither can be had, x
// stays as it is. What is rounded depends on shapes alone, a product's and, where it leaves codes, its
// reader's (OpTable::gives_codes), never on what was the fastest.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "kernels/cuda/matmul_choices.h"
#include "kernels/cuda/matmul_timer.h"
#include "kernels/cuda/prompt_linear.h"
#include "kernels/cuda/streamed_linear.h"
#include "kernels/op_state.h"
#include "src/base/status.h"
#include "src/device/cuda/cuda_stream.h"

namespace llm_dist::kernels {

// Device memory of the products of one stream.
struct MatmulMemory {
  void* workspace = nullptr;  // of one product at a time; StreamMemory::kSumBytes at least
  int64_t workspace_bytes = 0;
  uint32_t* flags = nullptr;  // StreamMemory::kFlagBytes, zeroed before the first product
  // Of x as f8_e4m3, [rows, k] with its scales [rows], for StreamMemory::kMostCodeRows at least; where no
  // weights are in that scheme, none.
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  int64_t codes_bytes = 0;
  int64_t code_rows = 0;
};

class Matmul {
 public:
  // `device`: the calling thread's. `memory` outlives this. `cache_folder`: where choices are kept between
  // runs; empty: nowhere.
  static Result<std::unique_ptr<Matmul>> make(const HopperDevice& device,
                                              const MatmulMemory& memory,
                                              const std::string& cache_folder,
                                              LinearKernels kernels);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Whether the kernel that is to run for it can send y's rows to where `terms` says, and should. Not known
  // before its first run.
  bool sends(const MatmulShape& shape, const device::PeerTerms& terms) const;
  // Issues the product; an error fails the stream.
  void run(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream);
  // Whether the kernel that is to run for it hands rows of x that are in so many ranks' shares
  // (MatmulOperands::handed).
  bool hands(const MatmulShape& shape, int ranks) const;
  // Whether our kernel for prompts is to run for it, whose codes may be in groups (MatmulShape).
  bool takes_prompt(const MatmulShape& shape) const;
  // Whether one kernel makes y in so many runs of rows; then run_shares does (PromptLinear::launch_shares).
  bool prefers_shares(const MatmulShape& shape, int shares) const;
  void run_shares(MatmulShape shape,
                  MatmulOperands operands,
                  std::span<void* const> shares,
                  int first,
                  device::CudaStream& stream) const;

  // While tuning, a shape that is met for the first time is run by several kernels and waits for the stream:
  // a few milliseconds. The end of it saves what was found.
  void start_tuning();
  void end_tuning();
  int num_tuned() const { return num_tuned_; }  // shapes, by this object
  // Of the last run() since this was last asked, where our kernels for few rows took it (CudaModule).
  std::optional<StreamedDivision> take_last_division();

 private:
  struct Plan;
  // A kernel that can run a shape.
  struct Candidate {
    enum class Kernel : uint8_t {
      kLibrary,
      kStreamed,
      kByRows,  // one row of x after the other, whatever the shape
      kPrompt,  // ours for prompts, which applies a gate where the sums are
    };
    Kernel kernel = Kernel::kLibrary;
    StreamedDivision division;       // of kStreamed
    cublasLtMatmulAlgo_t library{};  // of kLibrary
  };
  Matmul(cublasLtHandle_t handle,
         const MatmulMemory& memory,
         MatmulChoices choices,
         const HopperDevice& device,
         LinearKernels kernels);
  bool takes_streamed(const MatmulShape& shape) const;
  std::vector<Candidate> streamed_candidates(const MatmulShape& shape) const;
  bool takes_quantized(const MatmulShape& shape) const;
  bool has_codes(const MatmulShape& shape) const;
  Status quantize_x(MatmulShape& shape, MatmulOperands& operands, device::CudaStream& stream) const;
  Status issue_prompt(MatmulShape shape, MatmulOperands operands, device::CudaStream& stream) const;
  bool take_known(Plan& plan, const MatmulShape& shape, const MatmulChoices::Algorithm* known) const;
  Result<std::vector<Candidate>> library_candidates(const Plan& plan,
                                                    const MatmulShape& shape,
                                                    int most) const;
  Result<std::vector<Candidate>> candidates(const Plan& plan, const MatmulShape& shape, int most) const;
  std::vector<Candidate> f8_candidates(const Plan& plan, const MatmulShape& shape, int most) const;
  Status issue_then_gate(const Plan& plan,
                         const MatmulShape& shape,
                         const Candidate& candidate,
                         const MatmulOperands& operands,
                         device::CudaStream& stream) const;
  Status issue_library(const Plan& plan,
                       MatmulShape shape,
                       const Candidate& candidate,
                       MatmulOperands operands,
                       device::CudaStream& stream) const;
  Result<const Plan*> plan_for(const MatmulShape& shape,
                               const MatmulOperands& operands,
                               device::CudaStream& stream);
  Status choose(Plan& plan,
                const MatmulShape& shape,
                const MatmulOperands& operands,
                device::CudaStream& stream);
  Result<size_t> fastest(const Plan& plan,
                         const MatmulShape& shape,
                         const std::vector<Candidate>& tried,
                         const MatmulOperands& operands,
                         device::CudaStream& stream);
  Status issue(const Plan& plan,
               const MatmulShape& shape,
               const Candidate& candidate,
               const MatmulOperands& operands,
               device::CudaStream& stream) const;

  cublasLtHandle_t handle_;
  MatmulMemory memory_;
  MatmulChoices choices_;
  StreamedLinear streamed_;
  PromptLinear prompts_;
  LinearKernels kernels_;
  std::unique_ptr<MatmulTimer> timer_;  // while tuning
  int num_tuned_ = 0;
  const Plan* last_run_ = nullptr;
  std::map<MatmulShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace llm_dist::kernels
