// Which kernels this processor runs, and each thread's scratch memory. Built for the oldest processor.
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "int8.h"
#include "rows.h"
#include "tile_rows.h"

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

// $GOSSAMER_ISA names a set of int8 kernels, or one of the others: avx512 stands for the best int8 that has such vectors.
static const char* widest_of(const char* asked) {
  if (!strncmp(asked, "avx512", 6) || !strcmp(asked, "amx")) return "avx512";
  return strcmp(asked, "avxvnni") ? asked : "avx2";
}

static const Kernels* choose() {
  if (const char* asked = getenv("GOSSAMER_ISA"))
    if (const Kernels* found = kernels_named(widest_of(asked))) return found;
  for (const char* name : {"avx512", "avx2"})
    if (const Kernels* found = kernels_named(name)) return found;
  return &kernels_baseline;
}

static bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

// Intel's servers start two FMAs of 512 bits in a cycle, one of them on the port of the permutes, and have 48 KB of first-level
// cache. Measured on a Xeon, 64 to 2048 tokens, 64 instead of 32: 50 % is 23 % faster, 2:4 11 to 18 %, 75 % 15 to 19 %, 1:4 9 to
// 14 %, 90 % 13 to 20 %, 1:10 7 to 12 %; convolutions 2 to 19 %.
bool wide_panels() {
  static const bool wide = [] {
    const char* asked = getenv("GOSSAMER_PANEL");
    return asked ? !strcmp(asked, "64") : is_intel();
  }();
  return wide;
}

#if defined(__x86_64__)
static bool has_bf16() {  // vdpbf16ps
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
#endif

// On Intel's servers a vdpbf16ps does the work of two FMAs, of which they start two in a cycle, and vdpbf16ps one: there
// converting values as they are read is faster.
bool has_half_dots() {
#if defined(__x86_64__)
  static const bool has = !is_intel() && has_bf16();
  return has;
#else
  return false;
#endif
}

const Kernels& kernels() {
  static const Kernels* chosen = choose();
  return *chosen;
}

#if defined(__x86_64__)
constexpr int AMX_BF16 = 22, AMX_TILE = 24, AMX_INT8 = 25;  // bits of cpuid

// Has the processor tiles and products of this kind, and does the system let this process use them? It must be asked: tiles
// are 8 KB that it has to save for each thread.
static bool may_use_tiles(int kind) {
#if defined(__linux__)
  constexpr long ASK = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM and its part of a thread's state
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool there = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> AMX_TILE & 1) && (d >> kind & 1);
  return there && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
  return (void)kind, false;
#endif
}
#endif

const Int8Kernels* int8_kernels_named(const char* name) {
  if (!strcmp(name, "baseline")) return &int8_baseline;
#if defined(__x86_64__)
  const bool avx2 = kernels_named("avx2"), avx512 = kernels_named("avx512") && __builtin_cpu_supports("avx512vnni");
  if (!strcmp(name, "avx2")) return avx2 ? &int8_avx2 : nullptr;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool leaf = __get_cpuid_count(7, 1, &a, &b, &c, &d);
  if (!strcmp(name, "avxvnni")) return avx2 && leaf && (a >> 4 & 1) ? &int8_avxvnni : nullptr;
  if (!strcmp(name, "avx512vnni")) return avx512 ? &int8_avx512vnni : nullptr;
  const bool vbmi = avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  if (!strcmp(name, "avx512vbmi")) return vbmi ? &int8_avx512vbmi : nullptr;
  if (!strcmp(name, "amx")) return vbmi && may_use_tiles(AMX_INT8) ? &int8_amx : nullptr;
#endif
  return nullptr;
}

static const Int8Kernels* choose_int8() {
  const char *asked = getenv("GOSSAMER_ISA"), *names[] = {"amx", "avx512vbmi", "avx512vnni", "avxvnni", "avx2"};
  if (asked)
    if (const Int8Kernels* found = int8_kernels_named(asked)) return found;
  for (const char* name : names)
    if (const Int8Kernels* found = int8_kernels_named(name)) return found;
  return &int8_baseline;
}

const Int8Kernels& int8_kernels() {
  static const Int8Kernels* chosen = choose_int8();
  return *chosen;
}

const TileKernels* tile_kernels_named(const char* name) {
  if (!strcmp(name, "baseline")) return &tiles_baseline;
#if defined(__x86_64__)
  const bool avx512 = kernels_named("avx512") && __builtin_cpu_supports("avx512vbmi2") && has_bf16();
  if (!strcmp(name, "avx512")) return avx512 ? &tiles_avx512 : nullptr;
  if (!strcmp(name, "amx")) return avx512 && may_use_tiles(AMX_BF16) ? &tiles_amx : nullptr;
#endif
  return nullptr;
}

static const TileKernels* choose_tiles() {
  const char *asked = getenv("GOSSAMER_ISA"), *names[] = {"amx", "avx512"};
  if (asked && strcmp(asked, "amx")) {
    const TileKernels* found = tile_kernels_named(strncmp(asked, "avx512", 6) ? "baseline" : "avx512");
    return found ? found : &tiles_baseline;
  }
  for (const char* name : names)
    if (const TileKernels* found = tile_kernels_named(name)) return found;
  return &tiles_baseline;
}

const TileKernels& tile_kernels() {
  static const TileKernels* chosen = choose_tiles();
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
