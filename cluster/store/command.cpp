#include "cluster/store/command.h"

namespace llm_dist::cluster {

bool changes_a_job(const CommandBody& body) {
  return !std::holds_alternative<AddFile>(body) && !std::holds_alternative<DeleteFile>(body) &&
         !std::holds_alternative<RecordItem>(body) && !std::holds_alternative<CountDeaths>(body);
}

}  // namespace llm_dist::cluster
