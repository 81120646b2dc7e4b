// What tokenizer.cpp and chat_template.cpp share to call the Rust crate: views, sinks, codes to Status.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/text/ffi/llm_dist_text_ffi.h"

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_ignore_thread_begin();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" void __tsan_ignore_thread_end();    // NOLINT(bugprone-reserved-identifier)
#endif

namespace llm_dist::text {

// Lives around each call into the archive. Its locks are not instrumented, so ThreadSanitizer would take what
// they order for races (it sees the crate's accesses through memcpy, malloc and free).
class ForeignCall {
 public:
#ifdef __SANITIZE_THREAD__
  ForeignCall() { __tsan_ignore_thread_begin(); }
  ~ForeignCall() { __tsan_ignore_thread_end(); }
#else
  ForeignCall() {}
  ~ForeignCall() {}
#endif
  ForeignCall(const ForeignCall&) = delete;
  ForeignCall& operator=(const ForeignCall&) = delete;
};

inline llm_dist_ffi_bytes ffi_bytes(std::string_view text) {
  return {.data = reinterpret_cast<const uint8_t*>(text.data()), .size = text.size()};
}

inline llm_dist_ffi_sink append_to(std::string& out) {
  return {.context = &out, .write = [](void* context, const uint8_t* data, size_t size) {
            static_cast<std::string*>(context)->append(reinterpret_cast<const char*>(data), size);
          }};
}

inline Status ffi_status(int32_t code, std::string message) {
  if (code == LLM_DIST_FFI_OK) return ok_status();
  switch (code) {
    case LLM_DIST_FFI_INVALID: return invalid_argument(std::move(message));
    case LLM_DIST_FFI_UNAVAILABLE: return unavailable(std::move(message));
    case LLM_DIST_FFI_DEADLINE: return deadline_exceeded(std::move(message));
    default: return internal_error(std::move(message));
  }
}

}  // namespace llm_dist::text
