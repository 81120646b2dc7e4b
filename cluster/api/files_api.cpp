#include "cluster/api/files_api.h"

#include <functional>
#include <tuple>

#include "cluster/api/api_reply.h"
#include "cluster/api/batch_json.h"
#include "cluster/api/request_fields.h"
#include "cluster/api/upload.h"
#include "src/base/check.h"
#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr int kMaxPage = 10'000;
constexpr auto kUploadTime = std::chrono::minutes(10);  // for --max-file-bytes over a slow line
constexpr uint64_t kFormBytes = 64 << 10;               // of an upload, besides its file

Result<FileFilter> parse_filter(const http::Request& request) {
  FileFilter filter{.limit = kMaxPage};
  if (std::string limit = request.query_param("limit"); !limit.empty()) {
    ASSIGN_OR_RETURN(int64_t value, parse_number(limit, "limit", 1, kMaxPage));
    filter.limit = static_cast<int>(value);
  }
  if (std::string after = request.query_param("after"); !after.empty()) {
    ASSIGN_OR_RETURN(filter.after, parse_file_name(after));
  }
  if (std::string purpose = request.query_param("purpose"); !purpose.empty()) {
    ASSIGN_OR_RETURN(filter.purpose, parse_file_purpose(purpose));
  }
  std::string order = request.query_param("order");
  if (!order.empty() && order != "asc" && order != "desc")
    return invalid_argument("'order' must be asc or desc");
  filter.newest_first = order != "asc";
  if (request.headers.find("OpenAI-Project") != nullptr) {
    ASSIGN_OR_RETURN(filter.project, project_of(request));
  }
  return filter;
}

}  // namespace

void FilesApi::add_routes(http::Router& router) {
  using Method = void (FilesApi::*)(const http::Request&, const WriterPtr&);
  constexpr std::tuple<const char*, const char*, Method> kRoutes[] = {
      {"POST", "/v1/files", &FilesApi::upload},
      {"GET", "/v1/files", &FilesApi::list},
      {"GET", "/v1/files/{id}", &FilesApi::get},
      {"GET", "/v1/files/{id}/content", &FilesApi::content},
      {"DELETE", "/v1/files/{id}", &FilesApi::remove},
  };
  for (const auto& [method, path, handler] : kRoutes) {
    router.add(method, path, on_worker(parts_.workers, std::bind_front(handler, this)));
  }
}

bool FilesApi::is_upload(const http::Request& head) {
  return head.method == "POST" && head.path == "/v1/files";
}

uint64_t FilesApi::max_body_bytes() const {
  return static_cast<uint64_t>(parts_.max_file_bytes) + kFormBytes;
}

http::Admission FilesApi::admit(const http::Request& head) const {
  const std::string* type = head.headers.find("Content-Type");
  auto upload =
      std::make_shared<Upload>(parts_.contents, parts_.max_file_bytes, type == nullptr ? "" : *type);
  if (upload->refusal()) return {.refusal = upload->refusal()};
  Result<std::string> project = project_of(head);
  if (!project.ok()) return {.refusal = error_reply(project.status())};
  const uint64_t length = head.content_length().value_or(0);
  Result<uint64_t> room = parts_.contents.free_bytes();
  if (room.ok() && length <= max_body_bytes() && length > room.value()) {
    return {.refusal = error_reply(resource_exhausted("the disk has no room for this file"))};
  }
  return {.max_body_bytes = max_body_bytes(), .body_timeout = kUploadTime, .sink = std::move(upload)};
}

void FilesApi::upload(const http::Request& request, const WriterPtr& writer) {
  auto* upload = dynamic_cast<Upload*>(request.sink.get());
  CHECK(upload != nullptr, "an upload that nobody admitted");
  Result<std::string> project = project_of(request);
  // The content is durable before a row names it.
  bool written = upload->finish();
  std::unique_ptr<ContentWriter> content = upload->take_content();
  if (!written || !project.ok()) {
    return void(writer->send(written ? error_reply(project.status()) : *upload->refusal()));
  }
  StoredFile shown{.project = project.value(), .filename = upload->filename(), .bytes = content->bytes()};
  shown.created_us = parts_.now_us();
  AddFile file{
      .project = shown.project, .filename = shown.filename, .bytes = shown.bytes, .content = content->name()};
  Outcome outcome = parts_.commit.commit(shown.created_us, std::move(file));
  if (!outcome.ok()) return void(writer->send(error_reply(outcome.status())));
  content->keep();
  shown.id = outcome.value().id;
  writer->send({.body = render_file(shown)});
}

void FilesApi::list(const http::Request& request, const WriterPtr& writer) {
  Result<FileFilter> filter = parse_filter(request);
  if (!filter.ok()) {
    return void(writer->send(error_reply({.status = 400, .message = filter.status().message()})));
  }
  size_t limit = filter.value().limit;
  ++filter.value().limit;  // one more tells whether there are more
  Result<std::vector<StoredFile>> files = parts_.store.batches().files(filter.value());
  if (!files.ok()) return void(writer->send(error_reply(files.status())));
  bool has_more = files.value().size() > limit;
  if (has_more) files.value().resize(limit);
  writer->send({.body = render_file_list(files.value(), has_more)});
}

Result<StoredFile> FilesApi::find(const http::Request& request) const {
  ASSIGN_OR_RETURN(FileId id, parse_file_name(request.path_param("id")));
  return parts_.store.batches().file(id);
}

void FilesApi::get(const http::Request& request, const WriterPtr& writer) {
  Result<StoredFile> file = find(request);
  writer->send(file.ok() ? http::Response{.body = render_file(file.value())} : error_reply(file.status()));
}

void FilesApi::content(const http::Request& request, const WriterPtr& writer) {
  Result<StoredFile> file = find(request);
  using Source = std::shared_ptr<http::BodySource>;
  Result<Source> bytes =
      file.ok() ? parts_.contents.open(file.value().content) : Result<Source>(file.status());
  if (!bytes.ok()) return void(writer->send(error_reply(bytes.status())));
  writer->send({.content_type = "application/octet-stream", .source = std::move(bytes).value()});
}

void FilesApi::remove(const http::Request& request, const WriterPtr& writer) {
  Result<StoredFile> file = find(request);
  if (!file.ok()) return void(writer->send(error_reply(file.status())));
  FileId id = file.value().id;
  Outcome outcome = parts_.commit.commit(parts_.now_us(), DeleteFile{.file = id});
  if (!outcome.ok()) return void(writer->send(error_reply(outcome.status())));
  parts_.contents.remove(file.value().content);
  writer->send({.body = render_file_deleted(id)});
}

}  // namespace llm_dist::cluster
