// Coordinator: a store, the API in front of it and the supervisor behind it, put together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cluster/api/access.h"
#include "cluster/model_flags.h"
#include "cluster/slot_resources.h"
#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::cluster {

struct CoordinatorOptions {
  std::string store_path{};      // see default_store_path()
  std::string catalogue_file{};  // see Catalogue
  std::string program{};         // llm-dist, started for each attempt
  FlagNames flag_names{};        // of the program's
  std::string version{};
  SlotResources slots{};    // ranks at a time on this machine, and what they run on
  int orphan_seconds = 60;  // replicas end when no coordinator has come back by then
  int drain_seconds = 30;   // for the open requests of a replica that is to end
  int keep_days = 30;       // what is left of a job that has ended; 0: for ever

  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::string ssl_certfile{};
  std::string ssl_keyfile{};
  int64_t max_file_bytes = 200LL << 20;  // of one upload
  int batch_concurrency = 16;            // requests of one batch in flight on a replica
  std::vector<AccessKey> api_keys{};     // none: whoever reaches the port may do everything
};

class Coordinator {
 public:
  // Serves when it returns; the process may have as many files open as its hard limit says from then on. The
  // errors are those of open_sqlite_store, Catalogue::read and http::Server::create; invalid_argument: other
  // machines could reach it and nothing asks for a key.
  static Result<std::unique_ptr<Coordinator>> start(const CoordinatorOptions& options);
  // Leaves replicas running: the next coordinator of this store goes on with them.
  ~Coordinator();

  uint16_t port() const;
  std::string url() const;
  // Method and path of each.
  std::vector<std::pair<std::string, std::string>> routes() const;
  void stop(Deadline deadline);
  // Models and quotas from now on. The errors are those of Catalogue::read: nothing has changed then.
  Status reread_catalogue();

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::cluster
