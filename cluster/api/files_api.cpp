#include "cluster/api/files_api.h"

#include <functional>
#include <tuple>

#include "cluster/api/api_reply.h"
#include "cluster/api/batch_json.h"
#include "cluster/api/multipart.h"
#include "cluster/api/request_fields.h"
#include "src/base/format.h"
#include "src/base/nearest.h"

namespace llm_dist::cluster {
namespace {

constexpr int kMaxPage = 10'000;
constexpr size_t kMaxFilenameBytes = 255;

struct Upload {
  AddFile file;
  std::string_view content;
};

// The form of POST /v1/files. `param` becomes the field that is wrong.
Result<Upload> read_form(const std::vector<FormPart>& parts, std::string& param) {
  constexpr std::string_view kFields[] = {"file", "purpose", "expires_after"};
  const FormPart* file = nullptr;
  const FormPart* purpose = nullptr;
  for (const FormPart& part : parts) {
    param = part.name;
    if (part.name.starts_with("expires_after")) {
      return invalid_argument("'expires_after' is known, but not served: files stay until they are deleted");
    }
    if (part.name != "file" && part.name != "purpose") {
      return invalid_argument(
          format("unknown field '{}': did you mean '{}'?", part.name, nearest_word(part.name, kFields)));
    }
    (part.name == "file" ? file : purpose) = &part;
  }
  param = "purpose";
  if (purpose == nullptr || purpose->content != to_string(FilePurpose::kBatch)) {
    return invalid_argument("'purpose' must be 'batch'");
  }
  param = "file";
  if (file == nullptr) return invalid_argument("'file' is missing");
  std::string filename = file->filename.value_or("");
  if (filename.empty() || filename.size() > kMaxFilenameBytes) {
    return invalid_argument(format("'file' needs a filename of 1 to {} bytes", kMaxFilenameBytes));
  }
  param.clear();
  return Upload{{.filename = filename, .bytes = static_cast<int64_t>(file->content.size())}, file->content};
}

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

void FilesApi::upload(const http::Request& request, const WriterPtr& writer) {
  const std::string* type = request.headers.find("Content-Type");
  Result<std::vector<FormPart>> parts = parse_multipart(type == nullptr ? "" : *type, request.body);
  std::string param;
  Result<Upload> form = parts.ok() ? read_form(parts.value(), param) : Result<Upload>(parts.status());
  Result<std::string> project = project_of(request);
  if (!form.ok() || !project.ok()) {
    const Status& status = form.ok() ? project.status() : form.status();
    return void(writer->send(error_reply({.status = 400, .message = status.message(), .param = param})));
  }
  AddFile file = form.value().file;
  file.project = project.value();
  if (file.bytes > parts_.max_file_bytes) {
    return void(
        writer->send(error_reply({.status = 413,
                                  .message = format("a file may have {} bytes", parts_.max_file_bytes),
                                  .param = "file"})));
  }
  // The content is durable before a row names it.
  Result<std::unique_ptr<ContentWriter>> content = parts_.contents.create();
  Status written = content.status();
  if (written.ok()) written = content.value()->write(form.value().content);
  if (written.ok()) written = content.value()->finish();
  if (!written.ok()) return void(writer->send(error_reply(written)));
  file.content = content.value()->name();
  StoredFile shown{.project = file.project, .filename = file.filename, .bytes = file.bytes};
  shown.created_us = parts_.now_us();
  Outcome outcome = parts_.commit.commit(shown.created_us, std::move(file));
  if (!outcome.ok()) return void(writer->send(error_reply(outcome.status())));
  content.value()->keep();
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
  Result<std::string> bytes =
      file.ok() ? parts_.contents.read(file.value().content) : Result<std::string>(file.status());
  if (!bytes.ok()) return void(writer->send(error_reply(bytes.status())));
  writer->send({.content_type = "application/octet-stream", .body = std::move(bytes).value()});
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
