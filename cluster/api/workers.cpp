#include "cluster/api/workers.h"

#include "cluster/api/api_reply.h"

namespace llm_dist::cluster {

http::Handler on_worker(Workers& workers, Work work) {
  return [&workers, work = std::move(work)](http::Request request,
                                            std::shared_ptr<http::ResponseWriter> writer) {
    // What a worker takes must be copyable.
    auto shared = std::make_shared<http::Request>(std::move(request));
    if (!workers.run([work, shared, writer] { work(*shared, writer); })) {
      writer->send(error_reply(resource_exhausted("too many requests wait for the store")));
    }
  };
}

}  // namespace llm_dist::cluster
