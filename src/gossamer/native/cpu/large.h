// Memory for large results. The system gives memory to who touches it first, page by page, and malloc takes what is above
// 32 MB from it at every call and gives it back: 4 KB pages of 50 MB took 27 ms here, longer than the product at 95 %;
// asked for pages of 2 MB it is 5, most of it zeros that nobody reads. So the last such memory that was given back is kept
// for the next result, and the system is told (MADV_FREE) that it may have it as soon as it needs some.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace gossamer_torch {

#if defined(__linux__) && defined(MADV_HUGEPAGE) && defined(MADV_FREE)
class Large {
 public:
  static constexpr int64_t LEAST = int64_t(32) << 20, MOST = int64_t(256) << 20;  // bytes; more than MOST is not kept

  static bool suits(int64_t bytes) { return bytes >= LEAST; }

  void* data = nullptr;
  size_t size = 0;

  explicit Large(int64_t bytes) {
    const size_t wanted = (size_t(bytes) + PAGE - 1) / PAGE * PAGE;
    {
      Kept& last = kept();
      const std::lock_guard<std::mutex> hold(last.mutex);
      if (last.size >= wanted && last.size <= 2 * wanted) {
        std::swap(data, last.data), std::swap(size, last.size);
        return;
      }
    }
    void* all = mmap(nullptr, wanted + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return;
    char *from = static_cast<char*>(all), *first = from + (PAGE - uintptr_t(all) % PAGE) % PAGE;
    if (first != from) munmap(from, size_t(first - from));
    if (first != from + PAGE) munmap(first + wanted, size_t(from + PAGE - first));
    (void)madvise(first, wanted, MADV_HUGEPAGE);  // a wish: where it can't be granted, nothing changes
    data = first, size = wanted;
  }

  // What a tensor calls when its memory is no longer used, with the size.
  static void give_back(void* data, void* bytes) {
    size_t size = reinterpret_cast<uintptr_t>(bytes);
    if (size <= size_t(MOST)) {
      (void)madvise(data, size, MADV_FREE);
      Kept& last = kept();
      const std::lock_guard<std::mutex> hold(last.mutex);
      std::swap(data, last.data), std::swap(size, last.size);
    }
    if (data) munmap(data, size);
  }

 private:
  static constexpr size_t PAGE = size_t(2) << 20;
  struct Kept {
    std::mutex mutex;
    void* data = nullptr;
    size_t size = 0;
  };
  static Kept& kept() {
    static Kept* one = new Kept;  // never destroyed: tensors may be freed after everything else
    return *one;
  }
};
#else
class Large {  // malloc will do
 public:
  static bool suits(int64_t) { return false; }
  void* data = nullptr;
  size_t size = 0;
  explicit Large(int64_t) {}
  static void give_back(void*, void*) {}
};
#endif

}  // namespace gossamer_torch
