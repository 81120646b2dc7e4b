#include "tests/base/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> of_process{0};
thread_local std::atomic<int64_t>* of_thread = nullptr;

void count_one() noexcept {
  of_process.fetch_add(1, std::memory_order_relaxed);
  if (of_thread != nullptr) of_thread->fetch_add(1, std::memory_order_relaxed);
}

void* counted(size_t bytes) noexcept {
  count_one();
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* counted(size_t bytes, std::align_val_t alignment) noexcept {
  count_one();
  auto boundary = static_cast<size_t>(alignment);
  return std::aligned_alloc(boundary, (bytes + boundary - 1) / boundary * boundary);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace llm_dist {

int64_t num_allocations() { return of_process.load(std::memory_order_relaxed); }

void count_allocations_in(std::atomic<int64_t>& counter) { of_thread = &counter; }

}  // namespace llm_dist

// Every form that a program may call: a sanitizer's own form would answer for one that is left out, and see
// its memory come back here.
void* operator new(size_t bytes) { return or_throw(counted(bytes)); }
void* operator new[](size_t bytes) { return or_throw(counted(bytes)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) { return or_throw(counted(bytes, alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return or_throw(counted(bytes, alignment)); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted(bytes, alignment);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
