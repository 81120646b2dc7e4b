// Status and Result: how the world (peer, file, request) reports failure. A bug in this program is a CHECK
// instead.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "src/base/check.h"

namespace llm_dist {

enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument,     // the caller's input is wrong; the message says what to change
  kNotFound,            // a file, model, tensor or field does not exist
  kFailedPrecondition,  // right input, wrong state or wrong machine (no libmpi, port in use)
  kResourceExhausted,   // memory, queue, quota
  kUnavailable,         // peer gone, draining, loading: may succeed later
  kDeadlineExceeded,    // a blocking call ran out of its time
  kAborted,             // the world was aborted; the cause stands elsewhere
  kCancelled,           // the requester no longer wants it
  kDataLoss,            // truncated or corrupt file or message
  kUnimplemented,       // known, but not served
  kInternal,            // anything the peer or a library did that is none of the above
};

std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "not_found: no such file: x"
  std::string to_string() const;
  // The same status with `context` put in front of its message: "context: message".
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }
Status invalid_argument(std::string message);
Status not_found(std::string message);
Status failed_precondition(std::string message);
Status resource_exhausted(std::string message);
Status unavailable(std::string message);
Status deadline_exceeded(std::string message);
Status aborted(std::string message);
Status cancelled(std::string message);
Status data_loss(std::string message);
Status unimplemented(std::string message);
Status internal_error(std::string message);

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    CHECK(!std::get<Status>(state_).ok(), "a Result cannot hold an ok Status");
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  T& value() & {
    CHECK(ok(), "value() of a failed Result: {}", std::get<Status>(state_).to_string());
    return std::get<T>(state_);
  }
  const T& value() const& {
    CHECK(ok(), "value() of a failed Result: {}", std::get<Status>(state_).to_string());
    return std::get<T>(state_);
  }
  T&& value() && {
    CHECK(ok(), "value() of a failed Result: {}", std::get<Status>(state_).to_string());
    return std::move(std::get<T>(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace llm_dist

#define LLM_DIST_CONCAT_INNER(a, b) a##b
#define LLM_DIST_CONCAT(a, b) LLM_DIST_CONCAT_INNER(a, b)

// Returns the Status from the enclosing function unless it is ok.
#define RETURN_IF_ERROR(expr)                            \
  do {                                                   \
    ::llm_dist::Status status_or_error_ = (expr);        \
    if (!status_or_error_.ok()) return status_or_error_; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, make_x()): x from the Result, or its Status returned.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL(LLM_DIST_CONCAT(result_or_error_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                          \
  if (!result.ok()) return result.status();      \
  lhs = std::move(result).value()
