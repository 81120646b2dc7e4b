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
  explicit Router(ErrorRenderer render_error = plain_error) : render_error_(std::move(render_error)) {}

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

  ErrorRenderer render_error_;
  std::vector<Route> routes_;
};

}  // namespace llm_dist::http
