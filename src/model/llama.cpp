// Llama (Touvron et al. 2023; Dubey et al. 2024): pre-norm blocks of grouped-query attention with rotary
// positions and a SwiGLU MLP. Also SmolLM2, and whatever else calls itself LlamaForCausalLM.
#include <vector>

#include "parallel/attention.h"
#include "parallel/linear.h"
#include "parallel/norm.h"
#include "parallel/sampled_rows.h"
#include "src/model/registry.h"

namespace llm_dist::model {
namespace {

using parallel::Context;
using parallel::Contribution;
using parallel::Hidden;
using parallel::Normed;
using parallel::NormedAs;
using parallel::StepView;

class LlamaAttention {
 public:
  LlamaAttention(const Context& context,
                 const ModelOptions& options,
                 const parallel::RotaryTable& rotary,
                 parallel::HeadShard heads,
                 const std::string& name,
                 int index)
      : qkv_(context,
             "qkv",
             qkv_parts(name, heads, options.config.head_dim),
             options.config.hidden_size,
             options.config.attention_bias),
        attention_(context, rotary, heads, options.config.head_dim, index),
        out_(context,
             name + ".o_proj",
             {heads.q.begin * options.config.head_dim, heads.q.count * options.config.head_dim},
             options.config.hidden_size,
             options.config.attention_bias) {}

  void plan(const StepView& step) const { attention_.plan(step); }
  // Whole [num_tokens, features of this rank's heads].
  Tensor attend(const Normed& x, const StepView& step) const {
    return attention_.forward(qkv_.forward(x, step), step);
  }
  NormedAs takes(const StepView& step) const { return qkv_.takes(step); }
  Contribution project(const Tensor& attended, const StepView& step) const {
    return out_.forward({attended}, step);
  }

 private:
  static std::vector<parallel::ColumnPart> qkv_parts(const std::string& name,
                                                     parallel::HeadShard heads,
                                                     int64_t dim) {
    parallel::Range q{heads.q.begin * dim, heads.q.count * dim};
    parallel::Range kv{heads.kv.begin * dim, heads.kv.count * dim};
    return {{name + ".q_proj", q}, {name + ".k_proj", kv}, {name + ".v_proj", kv}};
  }

  parallel::ColumnParallelLinear qkv_;
  parallel::HeadParallelAttention attention_;
  parallel::RowParallelLinear out_;
};

class LlamaMlp {
 public:
  LlamaMlp(const Context& context, const ModelOptions& options, const std::string& name)
      : inner_(parallel::split_even(options.config.intermediate_size,
                                    context.mesh.tp(),
                                    context.mesh.rank_tp(),
                                    options.intermediate_granule)),
        gate_up_(context,
                 {name + ".gate_proj", inner_},
                 {name + ".up_proj", inner_},
                 options.config.hidden_size,
                 options.config.mlp_bias),
        down_(context, name + ".down_proj", inner_, options.config.hidden_size, options.config.mlp_bias) {}

  NormedAs takes(const StepView& step) const { return gate_up_.takes(step); }
  Contribution forward(const Normed& x, const StepView& step) const {
    return down_.forward(gate_up_.forward(x, down_, step), step);
  }

 private:
  parallel::Range inner_;
  parallel::GatedColumnParallelLinear gate_up_;
  parallel::RowParallelLinear down_;
};

class LlamaBlock {
 public:
  LlamaBlock(const Context& context,
             const ModelOptions& options,
             const parallel::RotaryTable& rotary,
             parallel::HeadShard heads,
             const std::string& name,
             int index)
      : input_norm_(context, name + ".input_layernorm", options.config.hidden_size, epsilon(options)),
        attention_(context, options, rotary, heads, name + ".self_attn", index),
        mlp_norm_(context, name + ".post_attention_layernorm", options.config.hidden_size, epsilon(options)),
        mlp_(context, options, name + ".mlp") {}

  void plan(const StepView& step) const { attention_.plan(step); }
  void forward(Hidden& hidden, const StepView& step) const {
    feed_forward(attend(hidden, step), hidden, step);
  }
  // Of a model's last block, behind whose attention only the sampled rows matter. Without any, all that it
  // leaves is in the KV cache.
  void forward_last(Hidden& hidden, const StepView& step, const parallel::SampledRows& sampled) const {
    const Tensor attended = attend(hidden, step);
    if (step.num_samples == 0) return;
    hidden.residual = sampled.residual(hidden.residual, step);
    feed_forward(sampled.attended(attended, step), hidden, parallel::SampledRows::behind_attention(step));
  }

 private:
  static float epsilon(const ModelOptions& options) {
    return static_cast<float>(options.config.rms_norm_eps);
  }
  Tensor attend(Hidden& hidden, const StepView& step) const {
    if (!hidden.x) return attention_.attend(input_norm_.norm(hidden.residual), step);
    return attention_.attend(input_norm_.add_and_norm(hidden.x, hidden.residual, attention_.takes(step)),
                             step);
  }
  void feed_forward(const Tensor& attended, Hidden& hidden, const StepView& step) const {
    const Normed x =
        mlp_norm_.add_and_norm(attention_.project(attended, step), hidden.residual, mlp_.takes(step));
    hidden.x = mlp_.forward(x, step);
  }

  parallel::RmsNorm input_norm_;
  LlamaAttention attention_;
  parallel::RmsNorm mlp_norm_;
  LlamaMlp mlp_;
};

class Llama : public Model {
 public:
  Llama(const Context& context, const ModelOptions& options)
      : heads_(parallel::shard_heads(options.config.num_heads,
                                     options.config.num_kv_heads,
                                     context.mesh.tp(),
                                     context.mesh.rank_tp())),
        head_dim_(options.config.head_dim),
        stream_(context, options.config.hidden_size),
        rotary_(context, rotary_frequencies(options.config), options.max_model_len, 1.0) {
    const checkpoint::ModelConfig& config = options.config;
    bool tied_here = config.tie_word_embeddings && context.mesh.pp() == 1;
    if (context.mesh.first_stage()) {
      table_ = vocab_weight(context, config, "model.embed_tokens.weight");
      embedding_ = std::make_unique<parallel::VocabParallelEmbedding>(context, *table_);
    }
    for (int i = 0; i < options.layers.count; ++i) {
      std::string name = "model.layers." + std::to_string(options.layers.begin + i);
      blocks_.push_back(std::make_unique<LlamaBlock>(context, options, rotary_, heads_, name, i));
    }
    if (context.mesh.last_stage()) {
      norm_ = std::make_unique<parallel::RmsNorm>(
          context, "model.norm", config.hidden_size, static_cast<float>(config.rms_norm_eps));
      if (!tied_here) {
        head_table_ = vocab_weight(
            context, config, config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
      }
      head_ = std::make_unique<parallel::VocabParallelHead>(context, tied_here ? *table_ : *head_table_);
      if (options.prune_last_layer) {
        sampled_ = std::make_unique<parallel::SampledRows>(
            context, config.hidden_size, heads_.q.count * config.head_dim);
      }
    }
  }

  KvSpec kv_spec() const override {
    return {.num_layers = num_blocks(), .num_kv_heads = heads_.kv.count, .head_dim = head_dim_};
  }
  int num_blocks() const override { return static_cast<int>(blocks_.size()); }

  void plan(const StepView& step) override { blocks_.front()->plan(step); }
  Hidden embed(const StepView& step) override {
    Hidden hidden = stream_.entrance(step);
    hidden.x = embedding_->forward(hidden.residual, step);
    return hidden;
  }
  Hidden entrance(const StepView& step) override { return stream_.entrance(step); }
  void block(int index, Hidden& hidden, const StepView& step) override {
    const LlamaBlock& block = *blocks_[static_cast<size_t>(index)];
    if (sampled_ && index == num_blocks() - 1) {
      block.forward_last(hidden, step, *sampled_);
    } else {
      block.forward(hidden, step);
    }
  }
  Tensor leave(const Hidden& hidden, const StepView& step) override { return stream_.finish(hidden, step); }
  Tensor head(Hidden& hidden, const StepView& step) override {
    return head_->forward(norm_->add_and_norm(hidden.x, hidden.residual).x.rows,
                          sampled_ ? parallel::SampledRows::behind_attention(step) : step);
  }

 private:
  static std::unique_ptr<parallel::VocabWeight> vocab_weight(const Context& context,
                                                             const checkpoint::ModelConfig& config,
                                                             const std::string& tensor) {
    return std::make_unique<parallel::VocabWeight>(context, tensor, config.vocab_size, config.hidden_size);
  }
  static std::vector<double> rotary_frequencies(const checkpoint::ModelConfig& config) {
    auto frequencies = checkpoint::rope_inverse_frequencies(config.rope, config.head_dim);
    return {frequencies.begin(), frequencies.end()};
  }

  parallel::HeadShard heads_;
  int64_t head_dim_;
  parallel::ResidualStream stream_;
  parallel::RotaryTable rotary_;
  std::unique_ptr<parallel::VocabWeight> table_;
  std::unique_ptr<parallel::VocabWeight> head_table_;
  std::unique_ptr<parallel::VocabParallelEmbedding> embedding_;
  std::vector<std::unique_ptr<LlamaBlock>> blocks_;
  std::unique_ptr<parallel::RmsNorm> norm_;
  std::unique_ptr<parallel::VocabParallelHead> head_;
  std::unique_ptr<parallel::SampledRows> sampled_;  // last stage, where it is pruned
};

}  // namespace

std::unique_ptr<Model> make_llama(const Context& context, const ModelOptions& options) {
  return std::make_unique<Llama>(context, options);
}

}  // namespace llm_dist::model
