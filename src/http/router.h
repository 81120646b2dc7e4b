// A visible table of routes that is itself a Handler.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/http/server.h"

namespace llm_dist::http {

// Unknown path: 404 naming it. Known path, other method: 405 with Allow. HEAD falls back to GET, OPTIONS is
// answered with Allow. Fill it before the server starts; afterwards it is only read.
class Router {
 public:
  // Renders, as an ErrorRenderer does, the answer to a request that no route takes.
  using Refusal = std::function<Response(const Request& request, int status, const std::string& message)>;

  explicit Router(ErrorRenderer render_error = plain_error)
      : Router(Refusal(
            [render = std::move(render_error)](const Request&, int status, const std::string& message) {
              return render(status, message);
            })) {}
  explicit Router(Refusal refusal) : refusal_(std::move(refusal)) {}

  // A segment "{name}" matches any one segment and arrives in Request::path_params. The first match wins.
  void add(std::string method, std::string path, Handler handler);
  // Method and path of each, in the order in which they were added.
  std::vector<std::pair<std::string, std::string>> routes() const;
  void operator()(Request request, std::shared_ptr<ResponseWriter> writer) const;

 private:
  struct Route {
    std::string method;
    std::string path;
    Handler handler;
  };
  std::string allowed_methods(std::string_view path) const;
  void refuse(const Request& request, ResponseWriter& writer) const;

  Refusal refusal_;
  std::vector<Route> routes_;
};

}  // namespace llm_dist::http
