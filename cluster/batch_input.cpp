#include "cluster/batch_input.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "src/base/format.h"
#include "src/base/json_text.h"
#include "src/base/nearest.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;

constexpr size_t kMaxCustomIdBytes = 512;
constexpr size_t kChunkBytes = 64 << 10;

const std::string* text_field(const json& object, const char* name) {
  auto found = object.find(name);
  return found == object.end() ? nullptr : found->get_ptr<const json::string_t*>();
}

Status check_fields(const json& request) {
  constexpr std::string_view kFields[] = {"custom_id", "method", "url", "body"};
  for (const auto& [name, value] : request.items()) {
    if (std::find(std::begin(kFields), std::end(kFields), name) != std::end(kFields)) continue;
    return invalid_argument(
        format("unknown field '{}': did you mean '{}'?", name, nearest_word(name, kFields)));
  }
  return ok_status();
}

// True: not there, null or false.
bool is_unset(const json& object, const char* name) {
  auto found = object.find(name);
  return found == object.end() || found->is_null() || *found == false;
}

}  // namespace

Result<BatchInput> BatchInput::open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return data_loss(format("the input file {} cannot be read", path));
  return BatchInput(std::move(file), path);
}

// Into line_, without its break. False: the file has ended.
Result<bool> BatchInput::read_line() {
  line_.clear();
  bool any = false;
  for (bool ended = false; !ended; any = true) {
    if (used_ == chunk_.size()) {
      ASSIGN_OR_RETURN(bool more, fill());
      if (!more) break;
    }
    size_t end = std::min(chunk_.find('\n', used_), chunk_.size());
    ended = end < chunk_.size();
    size_t count = end - used_;
    line_.append(chunk_, used_, count);
    if (ended) ++count;
    used_ += count;
    offset_ += static_cast<int64_t>(count);
    if (line_.size() > kMaxLineBytes) {
      return invalid_argument(format("line {}: longer than {} bytes", number_ + 1, kMaxLineBytes));
    }
  }
  if (any) ++number_;
  return any;
}

// False: there is no more.
Result<bool> BatchInput::fill() {
  chunk_.resize(kChunkBytes);
  file_.read(chunk_.data(), kChunkBytes);
  chunk_.resize(static_cast<size_t>(file_.gcount()));
  used_ = 0;
  if (file_.bad()) return data_loss(format("the input file {} cannot be read", path_));
  return !chunk_.empty();
}

Result<std::optional<ItemPlace>> BatchInput::next() {
  while (true) {
    int64_t begin = offset_;
    ASSIGN_OR_RETURN(bool more, read_line());
    if (!more) return std::optional<ItemPlace>();
    if (line_.ends_with('\r')) line_.pop_back();
    if (line_.find_first_not_of(" \t") == std::string::npos) continue;
    return std::optional(ItemPlace{.number = number_, .offset = begin, .bytes = line_.size()});
  }
}

Result<std::string> BatchInput::read(const ItemPlace& place) {
  std::string text(place.bytes, '\0');
  file_.clear();
  file_.seekg(place.offset);
  if (file_.read(text.data(), static_cast<std::streamsize>(text.size()))) return text;
  return data_loss(format("the input file {} has lost line {}", path_, place.number));
}

Result<BatchRequest> parse_batch_line(const std::string& line, const std::string& endpoint) {
  if (json_is_too_deep(line)) return invalid_argument(format("nested deeper than {} levels", kMaxJsonDepth));
  json request = json::parse(line, nullptr, false);
  if (!request.is_object()) return invalid_argument("not a JSON object");
  RETURN_IF_ERROR(check_fields(request));
  const std::string* custom_id = text_field(request, "custom_id");
  if (custom_id == nullptr || custom_id->empty() || custom_id->size() > kMaxCustomIdBytes) {
    return invalid_argument(format("'custom_id' must be a string of 1 to {} bytes", kMaxCustomIdBytes));
  }
  const std::string* method = text_field(request, "method");
  if (method == nullptr || *method != "POST") return invalid_argument("'method' must be POST");
  const std::string* url = text_field(request, "url");
  if (url == nullptr || *url != endpoint) {
    return invalid_argument(format("'url' must be the batch's endpoint, {}", endpoint));
  }
  auto body = request.find("body");
  if (body == request.end() || !body->is_object()) return invalid_argument("'body' must be an object");
  const std::string* model = text_field(*body, "model");
  if (model == nullptr || model->empty()) return invalid_argument("'body.model' must be a string");
  if (!is_unset(*body, "stream")) return invalid_argument("'body.stream' has no meaning in a batch");
  return BatchRequest{.custom_id = *custom_id, .model = *model, .body = body->dump()};
}

Result<BatchSummary> check_batch_input(const std::string& path, const std::string& endpoint) {
  ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(path));
  BatchSummary summary;
  std::unordered_set<std::string> seen;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<ItemPlace> place, input.next());
    if (!place) break;
    std::string where = format("line {}", place->number);
    if (++summary.num_items > kMaxItems) {
      return invalid_argument(format("{}: a batch may have {} requests", where, kMaxItems));
    }
    Result<BatchRequest> request = parse_batch_line(input.line(), endpoint);
    if (!request.ok()) return request.status().with_context(where);
    if (summary.model.empty()) summary.model = request.value().model;
    if (request.value().model != summary.model) {
      return invalid_argument(
          format("{}: model '{}', and the lines above have '{}': a batch is for one model",
                 where,
                 request.value().model,
                 summary.model));
    }
    if (!seen.insert(request.value().custom_id).second) {
      return invalid_argument(
          format("{}: the custom_id '{}' was given before", where, request.value().custom_id));
    }
  }
  if (summary.num_items == 0) return invalid_argument("the file holds no request");
  return summary;
}

}  // namespace llm_dist::cluster
