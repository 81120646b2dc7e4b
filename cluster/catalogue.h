// The administrator's file: the models that requests may name, and where they stand; what projects may have.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/quota.h"
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
  // The quota of "*" is that of each project which has none of its own.
  explicit Catalogue(std::map<std::string, CatalogueModel> models,
                     std::map<std::string, ProjectQuota> quotas = {})
      : models_(std::move(models)), quotas_(std::move(quotas)) {}

  // {"models": {NAME: {"path": PATH, "arguments": [FLAG…], "max_ranks": N}}, "projects": {NAME or "*":
  // {"max_running_jobs": N, "max_queued_jobs": N, "max_slots": N}}}; a relative path counts from the file's
  // folder. invalid_argument names the field that is wrong, and the nearest known one.
  static Result<Catalogue> read(const std::string& file);

  // not_found lists the names there are.
  Result<CatalogueModel> find(const std::string& name) const;
  ProjectQuota quota(const std::string& project) const;
  // By project, and "*".
  const std::map<std::string, ProjectQuota>& quotas() const { return quotas_; }

 private:
  std::map<std::string, CatalogueModel> models_;
  std::map<std::string, ProjectQuota> quotas_;
};

}  // namespace llm_dist::cluster
