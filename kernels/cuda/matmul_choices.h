// MatmulChoices: which of the library's kernels was the fastest for a shape, found out once a machine and
// kept in a file between runs.
#pragma once

#include <array>
#include <map>
#include <string>

#include "kernels/cuda/matmul_shape.h"
#include "src/base/status.h"

namespace llm_dist::kernels {

class MatmulChoices {
 public:
  // A cublasLtMatmulAlgo_t: opaque, and good for the library that made it.
  using Algorithm = std::array<uint64_t, 8>;

  // `environment`: one line that names whatever else a choice depends on: GPU, driver, library. `folder` is
  // made when something is saved; empty: nothing is kept.
  MatmulChoices(std::string folder, std::string environment);

  // Adds what the file holds. ok where there is none; data_loss when it is damaged or of another environment,
  // and then nothing is taken from it.
  Status load();
  // Writes all of them, and those that others have saved meanwhile, whole or not at all. No work where
  // nothing was added since load().
  Status save();

  const Algorithm* find(const MatmulShape& shape) const;
  // Of the shape with the fewest rows more than this one, less than kNear of them.
  static constexpr int64_t kNear = 8;
  const Algorithm* find_near(const MatmulShape& shape) const;
  void add(const MatmulShape& shape, const Algorithm& algorithm);
  const std::string& path() const { return path_; }

 private:
  using Map = std::map<MatmulShape, Algorithm>;
  Result<Map> read() const;

  std::string folder_;
  std::string environment_;
  std::string path_;
  Map choices_;
  bool changed_ = false;
};

}  // namespace llm_dist::kernels
