#include "cluster/attempt_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "cluster/job_spec.h"
#include "src/base/format.h"
#include "src/http/digest.h"

namespace llm_dist::cluster {
namespace {

constexpr int kSecretBytes = 32;

void say(std::vector<std::string>& arguments, OwnFlag flag, const std::string& value) {
  arguments.insert(arguments.end(), {name_of(flag), value});
}

void add_number(std::vector<std::string>& arguments, const char* flag, int value) {
  if (value > 0) arguments.insert(arguments.end(), {flag, std::to_string(value)});
}

// Those whose flag is not there yet: a flag that is given twice would be refused.
void add_defaults(std::vector<std::string>& arguments, const std::vector<std::string>& defaults) {
  const std::set<std::string> given(arguments.begin(), arguments.end());
  bool replaced = false;
  for (const std::string& word : defaults) {
    if (word.starts_with("--")) replaced = given.contains(word.substr(0, word.find('=')));
    if (!replaced) arguments.push_back(word);
  }
}

Status errno_status(const std::string& file) {
  return failed_precondition(format("{}: {}", file, strerror(errno)));
}

Status write_synced(const std::string& file, const std::string& text) {
  ::unlink(file.c_str());  // what a crash left, with a mode that is not known
  int to = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (to < 0) return errno_status(file);
  errno = ENOSPC;  // a write that is cut short sets none
  bool whole = ::write(to, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  Status status = whole && fsync(to) == 0 ? ok_status() : errno_status(file);
  ::close(to);
  return status;
}

// A crash leaves no file or a whole one.
Status make_secret(const std::string& file) {
  std::string part = file + ".part";
  Status status = write_synced(part, http::random_hex(kSecretBytes));
  if (status.ok() && ::rename(part.c_str(), file.c_str()) != 0) status = errno_status(file);
  if (!status.ok()) ::unlink(part.c_str());
  return status;
}

}  // namespace

Result<AttemptSecrets> AttemptSecrets::open(const std::string& file) {
  if (std::error_code error; !std::filesystem::exists(file, error)) RETURN_IF_ERROR(make_secret(file));
  std::string secret;
  if (!(std::ifstream(file) >> secret) || secret.size() != 2 * kSecretBytes) {
    return failed_precondition(format("{} holds no secret: remove it to have a new one made", file));
  }
  return AttemptSecrets(std::move(secret));
}

std::string AttemptSecrets::derive(const char* use, JobId job, int64_t attempt) const {
  return http::sha256_hex(format("{}|{}|{}|{}", root_, use, job, attempt));
}

std::string attempt_mark(const AttemptPlaces& places, JobId job, int64_t attempt) {
  return format("{}:{}:{}", places.store_path, job_name(job), attempt);
}
std::string attempt_folder(const AttemptPlaces& places, JobId job, int64_t attempt) {
  return format("{}/{}/{}", places.folder, job_name(job), attempt);
}
std::string result_file_of(const std::string& folder) { return folder + "/result.json"; }
std::string progress_file_of(const std::string& folder) { return folder + "/progress"; }

std::optional<AttemptProgress> read_progress(const std::string& folder) {
  AttemptProgress progress;
  if (std::ifstream(progress_file_of(folder)) >> progress.done >> progress.total) return progress;
  return std::nullopt;
}

Result<LaunchRequest> plan_attempt(const Job& job,
                                   int64_t attempt,
                                   const Catalogue& catalogue,
                                   const AttemptPlaces& places,
                                   const AttemptSecrets& secrets,
                                   int drain_seconds) {
  JobSpec spec = read_job_spec(job.spec);
  ASSIGN_OR_RETURN(CatalogueModel model, catalogue.find(spec.model));
  std::string folder = attempt_folder(places, job.id, attempt);
  LaunchRequest request{
      .mark = attempt_mark(places, job.id, attempt), .folder = folder, .num_ranks = spec.num_ranks()};
  std::vector<std::string>& arguments = request.arguments;
  if (job.kind == JobKind::kBench) {
    arguments = {"bench", spec.bench, model.path};
    say(arguments, OwnFlag::kSaveResult, result_file_of(folder));
    say(arguments, OwnFlag::kProgressFile, progress_file_of(folder));
    if (!spec.batch.empty()) arguments.insert(arguments.end(), {"--batch", spec.batch});
    add_number(arguments, "--input-len", spec.input_len);
    add_number(arguments, "--output-len", spec.output_len);
  } else {
    arguments = {"serve", model.path};
    say(arguments, OwnFlag::kPort, "0");
    say(arguments, OwnFlag::kServedModelName, spec.model);
    say(arguments, OwnFlag::kShutdownTimeout, std::to_string(drain_seconds));
    add_number(arguments, "--max-model-len", spec.max_model_len);
    add_number(arguments, "--max-num-seqs", spec.max_num_seqs);
    request.environment = {{"LLM_DIST_API_KEY", secrets.api_key(job.id, attempt)},
                           {"LLM_DIST_REGISTER_URL", places.url + "/v1/replicas"},
                           {"LLM_DIST_REGISTER_AS", format("{} {}", job_name(job.id), attempt)},
                           {"LLM_DIST_REGISTER_SECRET", secrets.registration(job.id, attempt)}};
    if (!places.ca_file.empty()) request.environment.emplace_back("LLM_DIST_REGISTER_CA", places.ca_file);
  }
  say(arguments, OwnFlag::kTp, std::to_string(spec.tp));
  say(arguments, OwnFlag::kPp, std::to_string(spec.pp));
  add_defaults(arguments, model.arguments);
  return request;
}

}  // namespace llm_dist::cluster
