// The model families, as a table. A new one is a file beside llama.cpp and a row in registry.cpp.
#pragma once

#include <span>
#include <string>

#include "src/model/model.h"

namespace llm_dist::model {

struct Family {
  std::string_view architecture;  // as checkpoint::ModelConfig names it
  std::unique_ptr<Model> (*make)(const parallel::Context&, const ModelOptions&);
};

std::span<const Family> families();
// unimplemented, naming the known ones.
Result<const Family*> find_family(const std::string& architecture);

std::unique_ptr<Model> make_llama(const parallel::Context& context, const ModelOptions& options);

}  // namespace llm_dist::model
