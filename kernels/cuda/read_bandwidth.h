// What the device's memory gives, measured, so that a benchmark can say how near it came.
#pragma once

#include "src/device/backend.h"

namespace llm_dist::kernels {

// Bytes a second at which all multiprocessors together read a buffer far larger than the caches.
Result<double> read_bandwidth_cuda(device::Backend& backend);

}  // namespace llm_dist::kernels
