// model.safetensors.index.json: what is accepted names plain files that stand beside it.
#include <algorithm>
#include <set>

#include "src/checkpoint/hf_index.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

const ScratchFolder& folder() {
  static const ScratchFolder scratch;
  static const bool made = [] {
    for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "a"})
      scratch.write(name, "x");
    return true;
  }();
  CHECK(made);
  return scratch;
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  const fuzz::ScratchFolder& folder = fuzz::folder();
  folder.write("model.safetensors.index.json", fuzz::text_of(data, size));
  auto files = checkpoint::list_hf_files(folder.path());
  if (!files.ok()) {
    fuzz::expect_message(files.status());
    return 0;
  }
  std::set<std::string> names(files->names.begin(), files->names.end());
  CHECK(!names.empty() && names.size() == files->names.size());
  CHECK(std::is_sorted(files->names.begin(), files->names.end()));
  for (const std::string& name : names) {
    CHECK(name.find('/') == name.npos && name.find('\0') == name.npos, "{}", name);
    CHECK(std::filesystem::is_regular_file(folder.path_of(name)), "{}", name);
  }
  for (const auto& [tensor, name] : files->weight_map) CHECK(names.contains(name), "{}", tensor);
  return 0;
}
