#include "cluster/store/command.h"

namespace llm_dist::cluster {

bool changes_a_job(const CommandBody& body) {
  return std::holds_alternative<SubmitJob>(body) || std::holds_alternative<ChangeJob>(body) ||
         std::holds_alternative<StartAttempt>(body) || std::holds_alternative<ChangeAttempt>(body) ||
         std::holds_alternative<CloseBatch>(body);
}

}  // namespace llm_dist::cluster
