// Which kernels this processor runs, and each thread's scratch memory. Built for the oldest processor.
#include <cstdlib>

#include <cstring>
#include <initializer_list>
#include <new>

#include "rows.h"

namespace gossamer {

const Kernels* kernels_named(const char* name) {
  if (!strcmp(name, "baseline")) return &kernels_baseline;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!strcmp(name, "avx2")) return avx2 ? &kernels_avx2 : nullptr;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!strcmp(name, "avx512")) return avx512 ? &kernels_avx512 : nullptr;
#endif
  return nullptr;
}

static const Kernels* choose() {
  if (const char* asked = getenv("GOSSAMER_ISA"))
    if (const Kernels* found = kernels_named(asked)) return found;
  for (const char* name : {"avx512", "avx2"})
    if (const Kernels* found = kernels_named(name)) return found;
  return &kernels_baseline;
}

bool wide_panels() {
  static const char* asked = getenv("GOSSAMER_PANEL");
  static const bool wide = asked && !strcmp(asked, "64");
  return wide;
}

const Kernels& kernels() {
  static const Kernels* chosen = choose();
  return *chosen;
}

float* scratch(size_t bytes) {
  struct Own {
    void* data = nullptr;
    size_t size = 0;
    ~Own() { free(data); }
  };
  static thread_local Own own;
  if (own.size < bytes) {
    free(own.data);
    own.size = 0;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    own.data = aligned_alloc(64, rounded);
    if (!own.data) throw std::bad_alloc();
    own.size = rounded;
  }
  return static_cast<float*>(own.data);
}

}  // namespace gossamer
