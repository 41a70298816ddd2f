// Memory for large results. malloc takes what is above 32 MB from the system at every call, and the system gives it page
// by page, to who touches it first: 4 KB pages of 50 MB took 27 ms here, longer than the product at 95 %. Asked for pages
// of 2 MB it is 5. It stays torch's own memory: a storage that torch did not allocate can't be resized, and FSDP resizes.
#pragma once
#include <cstddef>
#include <cstdint>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace gossamer_torch {

constexpr int64_t LARGE = int64_t(32) << 20;  // bytes: from here on, malloc asks the system for every allocation

// Ask for large pages for memory that nothing is written to yet.
inline void in_large_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t PAGE = uintptr_t(2) << 20;
  const uintptr_t start = uintptr_t(data), first = (start + PAGE - 1) / PAGE * PAGE, end = (start + bytes) / PAGE * PAGE;
  if (end > first) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // a wish, no more
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace gossamer_torch
