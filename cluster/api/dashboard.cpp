#include "cluster/api/dashboard.h"

#include <algorithm>
#include <string>

namespace llm_dist::cluster {
namespace {

constexpr std::string_view kPage = "/dashboard";
// Nothing from elsewhere, nothing inline, nothing sent elsewhere; and no other page may frame it, whose
// clicks would cancel jobs.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

http::Response page_of(const DashboardFile& file) {
  return {.content_type = std::string(file.content_type),
          .headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}},
          .body = std::string(file.content)};
}

}  // namespace

void add_dashboard_routes(http::Router& router) {
  using Writer = std::shared_ptr<http::ResponseWriter>;
  router.add("GET", "/", [](const http::Request&, const Writer& writer) {
    writer->send({.status = 307, .content_type = "", .headers = {{"Location", std::string(kPage)}}});
  });
  for (const DashboardFile& file : dashboard_files()) {
    router.add("GET", std::string(file.path), [&file](const http::Request&, const Writer& writer) {
      writer->send(page_of(file));
    });
  }
}

bool is_dashboard_path(std::string_view path) {
  std::span<const DashboardFile> files = dashboard_files();
  return path == "/" || std::any_of(files.begin(), files.end(), [&](const DashboardFile& file) {
           return file.path == path;
         });
}

}  // namespace llm_dist::cluster
