// The administrator's list of models: requests name one, only this file knows where it stands.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::cluster {

struct CatalogueModel {
  std::string path{};
  std::vector<std::string> arguments{};  // more flags of every command on this model
  int max_ranks = 64;                    // of one replica
};

class Catalogue {
 public:
  Catalogue() = default;
  explicit Catalogue(std::map<std::string, CatalogueModel> models) : models_(std::move(models)) {}

  // {"models": {NAME: {"path": PATH, "arguments": [FLAG…], "max_ranks": N}}}; a relative path counts from the
  // file's folder. invalid_argument names the field that is wrong, and the nearest known one.
  static Result<Catalogue> read(const std::string& file);

  // not_found lists the names there are.
  Result<CatalogueModel> find(const std::string& name) const;

 private:
  std::map<std::string, CatalogueModel> models_;
};

}  // namespace llm_dist::cluster
