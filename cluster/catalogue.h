// The administrator's file: the models that requests may name, and where they stand; what projects may have.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/model_flags.h"
#include "cluster/quota.h"
#include "src/base/status.h"

namespace llm_dist::cluster {

struct CatalogueModel {
  std::string path{};
  std::vector<std::string> arguments{};  // more flags of every command on this model, by their first names
  int max_ranks = 64;                    // of one replica
};

// Any thread may ask while another assigns: it gets an answer of one content, the old or the new.
class Catalogue {
 public:
  Catalogue() = default;
  // The quota of "*" is that of each project which has none of its own.
  explicit Catalogue(std::map<std::string, CatalogueModel> models,
                     std::map<std::string, ProjectQuota> quotas = {})
      : content_(std::make_shared<Content>(Content{std::move(models), std::move(quotas)})) {}
  Catalogue(const Catalogue& other) : content_(other.content()) {}
  Catalogue& operator=(const Catalogue& other);

  // {"models": {NAME: {"path": PATH, "arguments": [FLAG…], "max_ranks": N}}, "projects": {NAME or "*":
  // {"max_running_jobs": N, "max_queued_jobs": N, "max_slots": N}}}; a relative path counts from the file's
  // folder. invalid_argument names the field that is wrong, and the nearest known one, or the flag that is
  // the coordinator's to say. A path that does not exist is a warning in the log.
  static Result<Catalogue> read(const std::string& file, const FlagNames& names = {});

  // not_found lists the names there are.
  Result<CatalogueModel> find(const std::string& name) const;
  ProjectQuota quota(const std::string& project) const;
  // By project, and "*".
  std::map<std::string, ProjectQuota> quotas() const { return content()->quotas; }

 private:
  struct Content {
    std::map<std::string, CatalogueModel> models;
    std::map<std::string, ProjectQuota> quotas;
  };
  std::shared_ptr<const Content> content() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Content> content_ = std::make_shared<Content>();  // under mutex_
};

}  // namespace llm_dist::cluster
