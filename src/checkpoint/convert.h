// Converting a checkpoint to a Hugging Face directory of dense weights.
#pragma once

#include <string>

#include "src/base/dtype.h"
#include "src/base/status.h"
#include "src/checkpoint/checkpoint.h"

namespace llm_dist::checkpoint {

// Writes config.json, generation_config.json, model.safetensors (every tensor as `dtype`: f32, bf16 or f16),
// tokenizer.json and tokenizer_config.json into `directory`, which is made where it is missing;
// failed_precondition where it holds a model. Weights stream through, a few MiB at a time. `tokenizer_json`:
// the text of that file; "" where the checkpoint has no tokenizer, which then gives neither.
Status convert_to_hf(const Checkpoint& checkpoint,
                     const std::string& tokenizer_json,
                     const std::string& directory,
                     DType dtype);

}  // namespace llm_dist::checkpoint
