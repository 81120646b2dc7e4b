// The dashboard: a page, its style and its script, compiled in. They hold no data and need no key; what the
// script shows it asks of the API.
#pragma once

#include <span>
#include <string_view>

#include "src/http/router.h"

namespace llm_dist::cluster {

struct DashboardFile {
  std::string_view path;  // of the request
  std::string_view content_type;
  std::string_view content;
};
// Those of cluster/dashboard/.
std::span<const DashboardFile> dashboard_files();

// GET / leads to the page.
void add_dashboard_routes(http::Router& router);
// Whether a path is one of these routes.
bool is_dashboard_path(std::string_view path);

}  // namespace llm_dist::cluster
