// Ops: a backend's op table bound to one rank's state and stream, so that a layer calls ops.rms_norm({...}).
#pragma once

#include <cstdint>

#include "kernels/op_observer.h"
#include "kernels/op_table.h"

namespace llm_dist::kernels {

class Ops {
 public:
  Ops(const OpTable& table, OpState& state, device::Stream& stream, OpObserver* observer = nullptr)
      : table_(&table), state_(&state), stream_(&stream), observer_(observer) {}

  const OpTable& table() const { return *table_; }
  OpState& state() const { return *state_; }
  device::Stream& stream() const { return *stream_; }

  bool gives_codes(
      const Weight& gate_up, const Weight& reader, bool has_bias, DType activation, int64_t rows) const {
    return table_->gives_codes(*state_, gate_up, reader, has_bias, activation, rows);
  }
  bool takes_codes(const Weight& weight, bool has_bias, DType activation, int64_t rows) const {
    return table_->takes_codes(*state_, weight, has_bias, activation, rows);
  }
  void embedding(const EmbeddingParams& p) const { run("embedding", p.ids.dim(0), table_->embedding, p); }
  void rms_norm(const RmsNormParams& p) const { run("rms_norm", p.x.dim(0), table_->rms_norm, p); }
  void add_rms_norm(const AddRmsNormParams& p) const {
    run("add_rms_norm", p.x.dim(0), table_->add_rms_norm, p);
  }
  // Seen as the product that it is; whether out is sent (OpTable).
  bool linear_terms(const LinearTermsParams& p) const {
    bool sent = false;
    auto issue = [&](OpState& state, device::Stream& stream, const LinearParams&) {
      sent = table_->linear_terms(state, stream, p);
    };
    run("linear", p.product.x.dim(0), issue, p.product);
    return sent;
  }
  // False: nothing has been done (OpTable). An observer is to see the sum.
  bool add_rms_norm_of_terms(const AddRmsNormOfTermsParams& p) const {
    return observer_ == nullptr && table_->add_rms_norm_of_terms(*state_, *stream_, p);
  }
  void add(const AddParams& p) const { run("add", p.a.dim(0), table_->add, p); }
  // handed: of x, where ranks hand its rows (OpTable).
  void linear(const LinearParams& p, const device::HandedRows& handed = {}) const {
    auto issue = [&](OpState& state, device::Stream& stream, const LinearParams&) {
      if (handed.size > 0) return table_->linear_of_handed(state, stream, p, handed);
      table_->linear(state, stream, p);
    };
    run("linear", p.x.dim(0), issue, p);
  }
  void linear_shares(const LinearSharesParams& p) const {
    run("linear_shares", p.x.dim(0), table_->linear_shares, p);
  }
  void linear_silu_and_mul(const LinearSiluAndMulParams& p, const device::HandedRows& handed = {}) const {
    auto issue = [&](OpState& state, device::Stream& stream, const LinearSiluAndMulParams&) {
      if (handed.size > 0) return table_->linear_silu_and_mul_of_handed(state, stream, p, handed);
      table_->linear_silu_and_mul(state, stream, p);
    };
    run("linear_silu_and_mul", p.x.dim(0), issue, p);
  }
  void silu_and_mul(const SiluAndMulParams& p) const {
    run("silu_and_mul", p.out.dim(0), table_->silu_and_mul, p);
  }
  void rope_append(const RopeAppendParams& p) const {
    run("rope_append", p.qkv.dim(0), table_->rope_append, p);
  }
  void attention_plan(const AttentionPlanParams& p) const {
    run("attention_plan", p.num_tokens, table_->attention_plan, p);
  }
  void attention(const AttentionParams& p) const { run("attention", p.q.dim(0), table_->attention, p); }
  void gather_tokens(const GatherTokensParams& p) const {
    run("gather_tokens", p.ids.dim(0), table_->gather_tokens, p);
  }
  void scatter_tokens(const ScatterTokensParams& p) const {
    run("scatter_tokens", p.slots.dim(0), table_->scatter_tokens, p);
  }
  void gather_rows(const GatherRowsParams& p) const {
    run("gather_rows", p.rows.dim(0), table_->gather_rows, p);
  }
  void sample(const SampleParams& p) const { run("sample", p.rows.dim(0), table_->sample, p); }
  void argmax_shard(const ArgmaxShardParams& p) const {
    run("argmax_shard", p.rows.dim(0), table_->argmax_shard, p);
  }
  void argmax_merge(const ArgmaxMergeParams& p) const {
    run("argmax_merge", p.records.dim(0), table_->argmax_merge, p);
  }

  // Issues something that is no op, so that it shows beside them: issue(stream).
  template <typename Issue>
  void observed(CallKind kind, const char* name, int64_t rows, Issue&& issue) const {
    OpCall call{.name = name, .rows = rows, .kind = kind, .params = {}};
    if (observer_ != nullptr) observer_->before(call, *stream_);
    issue(*stream_);
    if (observer_ != nullptr) observer_->after(call, *stream_);
  }

 private:
  template <typename Params, typename Issue>
  void run(const char* name, int64_t rows, Issue&& op, const Params& params) const {
    OpCall call{.name = name, .rows = rows, .kind = CallKind::kOp, .params = &params};
    if (observer_ != nullptr) observer_->before(call, *stream_);
    op(*state_, *stream_, params);
    if (observer_ != nullptr) observer_->after(call, *stream_);
  }

  const OpTable* table_;
  OpState* state_;
  device::Stream* stream_;
  OpObserver* observer_;
};

}  // namespace llm_dist::kernels
