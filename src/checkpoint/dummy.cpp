#include "src/checkpoint/dummy.h"

#include <string_view>

#include "src/base/fnv1a.h"
#include "src/checkpoint/quantize.h"
#include "src/checkpoint/row_loops.h"

namespace llm_dist::checkpoint {
namespace {

uint64_t mix(uint64_t x) {  // the finalizer of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class ListBuilder {
 public:
  ListBuilder(WeightScheme linear, WeightScheme vector) : linear_(linear), vector_(vector) {}

  void matrix(std::string name, int64_t rows, int64_t cols) { add(std::move(name), linear_, rows, cols); }
  void vector(std::string name, int64_t values) { add(std::move(name), vector_, values, 1); }
  void linear(const std::string& name, int64_t rows, int64_t cols, bool bias) {
    matrix(name + ".weight", rows, cols);
    if (bias) vector(name + ".bias", rows);
  }
  std::vector<TensorInfo> take() { return std::move(tensors_); }

 private:
  void add(std::string name, WeightScheme scheme, int64_t rows, int64_t cols) {
    tensors_.push_back(
        {.name = std::move(name), .scheme = scheme, .rows = rows, .cols = cols, .offset = offset_});
    offset_ += tensors_.back().bytes();
  }
  WeightScheme linear_;
  WeightScheme vector_;
  int64_t offset_ = 0;
  std::vector<TensorInfo> tensors_;
};

void add_layer(ListBuilder& list, const ModelConfig& config, int64_t layer) {
  const std::string prefix = format("model.layers.{}.", layer);
  int64_t hidden = config.hidden_size;
  int64_t q_rows = config.num_heads * config.head_dim;
  int64_t kv_rows = config.num_kv_heads * config.head_dim;
  list.vector(prefix + "input_layernorm.weight", hidden);
  list.linear(prefix + "self_attn.q_proj", q_rows, hidden, config.attention_bias);
  list.linear(prefix + "self_attn.k_proj", kv_rows, hidden, config.attention_bias);
  list.linear(prefix + "self_attn.v_proj", kv_rows, hidden, config.attention_bias);
  list.linear(prefix + "self_attn.o_proj", hidden, q_rows, config.attention_bias);
  list.vector(prefix + "post_attention_layernorm.weight", hidden);
  list.linear(prefix + "mlp.gate_proj", config.intermediate_size, hidden, config.mlp_bias);
  list.linear(prefix + "mlp.up_proj", config.intermediate_size, hidden, config.mlp_bias);
  list.linear(prefix + "mlp.down_proj", hidden, config.intermediate_size, config.mlp_bias);
}

}  // namespace

Result<std::vector<TensorInfo>> expected_tensors(const ModelConfig& config, WeightScheme linear) {
  if (config.architecture != "llama")
    return unimplemented(
        format("the tensors of architecture {} are not known; llama's are", config.architecture));
  int64_t block = scheme_traits(linear).block_values;
  for (int64_t cols : {config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size})
    if (cols % block != 0)
      return invalid_argument(
          format("{} needs rows of a multiple of {} values, this model has {}", linear, block, cols));
  ListBuilder list(linear, scheme_of(config.torch_dtype));
  list.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) add_layer(list, config, layer);
  list.vector("model.norm.weight", config.hidden_size);
  if (!config.tie_word_embeddings) list.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  return list.take();
}

void fill_dummy(const SliceChunk& chunk) {
  const ResolvedSlice& slice = *chunk.slice;
  const SliceRequest& request = *slice.request;
  bool is_norm = request.name.ends_with("norm.weight");
  uint64_t name_key = fnv1a(request.name);
  std::vector<float> values(static_cast<size_t>(request.col_count), 1.0f);
  for (int64_t row = chunk.row_begin; row < chunk.row_begin + chunk.row_count; ++row) {
    uint64_t row_key = mix(name_key + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u);
    if (!is_norm) make_up_row(row_key, request.col_begin, values.data(), request.col_count);
    quantize_row(slice.tensor->scheme, values.data(), slice.destination_of(row), request.col_count);
  }
}

}  // namespace llm_dist::checkpoint
