// What a project's quota says to a submission.
#pragma once

#include <optional>

#include "cluster/api/api_reply.h"
#include "cluster/catalogue.h"
#include "cluster/store/command.h"

namespace llm_dist::cluster {

// 403: it could never be carried out, however long it waited. Otherwise nothing, and the job knows how many
// of its project may wait.
std::optional<ApiError> apply_quota(SubmitJob& job, const Catalogue& catalogue);

// 429: too many of the project wait.
http::Response queue_full_reply(const std::string& project, int max_queued);

}  // namespace llm_dist::cluster
