#include "parallel/contribution.h"

namespace llm_dist::parallel {

Tensor all_reduce_rows(const Context& context, const Tensor& rows) {
  context.ops->observed(
      kernels::CallKind::kCollective, "all_reduce", rows.dim(0), [&](device::Stream& stream) {
        context.tensor_group->all_reduce(rows, comm::ReduceOp::kSum, stream);
      });
  return rows;
}

}  // namespace llm_dist::parallel
