#include "launch/common_terms.h"

#include <algorithm>
#include <sstream>

#include "src/base/fnv1a.h"

namespace llm_dist::launch {
namespace {

std::string hash_of(std::string_view text) {
  std::ostringstream out;
  out << std::hex << fnv1a(text);
  return out.str();
}

std::string list_of(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text.empty() ? "none" : text;
}

std::string on_or_off(bool value) { return value ? "on" : "off"; }

std::string text_of(const checkpoint::ModelConfig& config) {
  std::ostringstream out;
  out.precision(17);
  out << config.architecture << ' ' << config.hidden_size << ' ' << config.num_layers << ' '
      << config.num_heads << ' ' << config.num_kv_heads << ' ' << config.head_dim << ' '
      << config.intermediate_size << ' ' << config.vocab_size << ' ' << config.max_position_embeddings << ' '
      << config.rms_norm_eps << ' ' << config.tie_word_embeddings << config.attention_bias << config.mlp_bias
      << ' ' << config.rope.theta << ' ' << to_string(config.rope.scaling) << ' ' << config.rope.factor << ' '
      << config.rope.low_freq_factor << ' ' << config.rope.high_freq_factor << ' '
      << config.rope.original_max_position_embeddings;
  for (float factor : config.rope.frequency_factors) out << ' ' << factor;
  return out.str();
}

std::string text_of(std::span<const checkpoint::TensorInfo> tensors) {
  std::vector<std::string> lines;  // files may list them in any order
  for (const checkpoint::TensorInfo& tensor : tensors)
    lines.push_back(format("{} {} {} {}\n", tensor.name, tensor.scheme, tensor.rows, tensor.cols));
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

// A row of matrices that any training changes, of the first layer and of the last one.
Result<std::string> sample_of(const checkpoint::Checkpoint& checkpoint) {
  std::vector<const checkpoint::TensorInfo*> sampled = {checkpoint.find("model.norm.weight")};
  for (int64_t layer : {int64_t{0}, checkpoint.config().num_layers - 1}) {
    for (const char* matrix : {"self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"})
      sampled.push_back(checkpoint.find(format("model.layers.{}.{}.weight", layer, matrix)));
  }
  std::erase(sampled, nullptr);
  std::vector<std::string> rows;
  std::vector<checkpoint::SliceRequest> requests;
  rows.reserve(sampled.size());
  for (const checkpoint::TensorInfo* tensor : sampled) {
    const int64_t count = tensor->cols == 1 ? tensor->rows : 1;  // a vector's values are rows
    rows.emplace_back(static_cast<size_t>(count * tensor->row_bytes()), '\0');
    requests.push_back({.name = tensor->name,
                        .row_count = count,
                        .col_count = tensor->cols,
                        .destination = reinterpret_cast<std::byte*>(rows.back().data())});
  }
  RETURN_IF_ERROR(checkpoint.read(requests, {.threads = 1}).status());
  std::string text;
  for (const std::string& row : rows) text += row;
  return text;
}

}  // namespace

Result<CommonTerms> common_terms(const engine::EngineOptions& options,
                                 const checkpoint::Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(const std::string sample, sample_of(checkpoint));
  const parallel::Layout& layout = options.layout;
  return CommonTerms{
      {"--layout", to_string(layout)},
      {"--pp-layer-split", list_of(options.layer_split)},
      {"--load-format", std::string(to_string(checkpoint.load_format()))},
      {"--dtype", std::string(to_string(options.dtype))},
      {"--kv-cache-dtype", std::string(to_string(options.kv_dtype))},
      {"--quantization", options.quantization ? std::string(to_string(*options.quantization)) : "none"},
      {"--block-size", std::to_string(options.block_size)},
      {"--max-model-len", std::to_string(options.max_model_len)},
      {"--max-num-seqs", std::to_string(options.max_num_seqs)},
      {"--max-num-batched-tokens", std::to_string(options.max_num_batched_tokens)},
      {"--enable-chunked-prefill", on_or_off(options.enable_chunked_prefill)},
      {"--async-scheduling", on_or_off(options.async_scheduling)},
      {"sizes of --cuda-graph-sizes", list_of(options.graph_sizes)},
      {"sizes of --cuda-graph-sizes beside a profile", list_of(options.tuned_sizes)},
      {"--disable-last-layer-pruning", on_or_off(!options.prune_last_layer)},
      {"--deterministic", on_or_off(options.deterministic)},
      {"peer memory (--disable-custom-all-reduce)", on_or_off(options.peer_memory)},
      {"hand-offs over it (--disable-custom-hand-off)", on_or_off(options.peer_hand_off)},
      {"a configuration of the model with the hash", hash_of(text_of(checkpoint.config()))},
      {"tensors of the model with the hash", hash_of(text_of(checkpoint.tensors()))},
      {"weights with the hash", hash_of(sample)}};
}

std::string pack(const CommonTerms& terms) {
  std::string text;
  for (const auto& [name, value] : terms) text += name + "\t" + value + "\n";
  return text;
}

Status refuse_different_terms(std::span<const std::string> packed, std::span<const comm::HostInfo> hosts) {
  for (size_t rank = 1; rank < packed.size(); ++rank) {
    if (packed[rank] == packed[0]) continue;
    std::istringstream of_first(packed[0]);
    std::istringstream of_this(packed[rank]);
    std::string expected;
    std::string found;
    while (std::getline(of_first, expected) && std::getline(of_this, found) && expected == found) {
    }
    const std::string name = expected.substr(0, expected.find('\t'));
    auto value = [](const std::string& line) { return line.substr(line.find('\t') + 1); };
    return invalid_argument(format(
        "rank {} on {} has {} {}, rank 0 on {} has {}: all ranks take the same flags and the same model",
        rank,
        hosts[rank].hostname,
        name,
        value(found),
        hosts[0].hostname,
        value(expected)));
  }
  return ok_status();
}

}  // namespace llm_dist::launch
