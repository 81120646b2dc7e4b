#include "src/http/router.h"

#include <algorithm>
#include <optional>

#include "src/base/format.h"

namespace llm_dist::http {
namespace {

using PathParams = std::vector<std::pair<std::string, std::string>>;

std::string_view next_segment(std::string_view& path) {
  size_t end = path.find('/', 1);
  std::string_view segment = path.substr(0, end);
  path = end == std::string_view::npos ? std::string_view() : path.substr(end);
  return segment;
}

bool is_parameter(std::string_view segment) { return segment.starts_with("/{") && segment.ends_with('}'); }

std::optional<PathParams> match(std::string_view pattern, std::string_view path) {
  PathParams params;
  while (!pattern.empty() && !path.empty()) {
    std::string_view expected = next_segment(pattern);
    std::string_view segment = next_segment(path);
    if (is_parameter(expected) && segment.size() > 1) {
      params.emplace_back(expected.substr(2, expected.size() - 3), percent_decode(segment.substr(1)));
    } else if (expected != segment) {
      return std::nullopt;
    }
  }
  if (!pattern.empty() || !path.empty()) return std::nullopt;
  return params;
}

bool serves(std::string_view route_method, std::string_view method) {
  return route_method == method || (method == "HEAD" && route_method == "GET");
}

}  // namespace

void Router::add(std::string method, std::string path, Handler handler) {
  routes_.push_back({std::move(method), std::move(path), std::move(handler)});
}

std::vector<std::pair<std::string, std::string>> Router::routes() const {
  std::vector<std::pair<std::string, std::string>> names;
  names.reserve(routes_.size());
  for (const Route& route : routes_) names.emplace_back(route.method, route.path);
  return names;
}

void Router::operator()(Request request, std::shared_ptr<ResponseWriter> writer) const {
  for (const Route& route : routes_) {
    if (!serves(route.method, request.method)) continue;
    auto params = match(route.path, request.path);
    if (!params) continue;
    request.path_params = std::move(*params);
    route.handler(std::move(request), std::move(writer));
    return;
  }
  refuse(request, *writer);
}

void Router::refuse(const Request& request, ResponseWriter& writer) const {
  std::string allowed = allowed_methods(request.path);
  Response response;
  if (allowed.empty()) {
    response = refusal_(request, 404, format("no such path: {}", request.path));
  } else if (request.method == "OPTIONS") {
    response = {.status = 204, .content_type = "", .headers = {}, .body = ""};
  } else {
    response = refusal_(
        request, 405, format("{} does not serve {}; it serves {}", request.path, request.method, allowed));
  }
  if (!allowed.empty()) response.headers.set("Allow", allowed);
  writer.send(response);
}

// "GET, HEAD, OPTIONS"; empty for a path without any route.
std::string Router::allowed_methods(std::string_view path) const {
  std::vector<std::string> methods;
  auto add_once = [&](const std::string& method) {
    if (std::find(methods.begin(), methods.end(), method) == methods.end()) methods.push_back(method);
  };
  for (const Route& route : routes_) {
    if (path != "*" && !match(route.path, path)) continue;
    add_once(route.method);
    if (route.method == "GET") add_once("HEAD");
  }
  if (methods.empty()) return {};
  add_once("OPTIONS");
  std::string text;
  for (const std::string& method : methods) text += (text.empty() ? "" : ", ") + method;
  return text;
}

}  // namespace llm_dist::http
