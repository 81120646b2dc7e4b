// Which safetensors files a Hugging Face directory consists of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::checkpoint {

struct HfFiles {
  std::vector<std::string> names;                 // file names inside the directory, sorted
  std::map<std::string, std::string> weight_map;  // tensor → file name; empty without an index
};

// model.safetensors.index.json where it stands, else model.safetensors, else every *.safetensors. kNotFound
// where there is none or the index names a missing file; kDataLoss for a malformed index.
Result<HfFiles> list_hf_files(const std::string& directory);

}  // namespace llm_dist::checkpoint
