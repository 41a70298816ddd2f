// The ceilings of one core: multiply-adds a second, and bytes read a second from a cache or from memory.
#include <chrono>
#include <cstdint>
#include <cstdlib>

#ifndef WIDTH
#define WIDTH 4
#endif
typedef float vec __attribute__((vector_size(WIDTH * 4)));
#define KEEP(v) asm volatile("" : "+" CLASS(v))
#if WIDTH == 16
#define CLASS "v"
#elif defined(__x86_64__)
#define CLASS "x"
#else
#define CLASS "w"
#endif

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

extern "C" __attribute__((visibility("default"))) double fma_gflops() {
  vec m = vec{} + 0.999f, b = vec{} + 0.5f;
  vec a0 = b, a1 = b, a2 = b, a3 = b, a4 = b, a5 = b, a6 = b, a7 = b, a8 = b, a9 = b;
  double best = 1e9;
  for (int run = 0; run < 30; run++) {
    const double start = now();
    for (int i = 0; i < 200000; i++) {
      a0 = a0 * m + b, a1 = a1 * m + b, a2 = a2 * m + b, a3 = a3 * m + b, a4 = a4 * m + b;
      a5 = a5 * m + b, a6 = a6 * m + b, a7 = a7 * m + b, a8 = a8 * m + b, a9 = a9 * m + b;
      KEEP(a0);
      KEEP(a1);
      KEEP(a2);
      KEEP(a3);
      KEEP(a4);
      KEEP(a5);
      KEEP(a6);
      KEEP(a7);
      KEEP(a8);
      KEEP(a9);
    }
    const double seconds = now() - start;
    best = seconds < best ? seconds : best;
  }
  return 200000.0 * 10 * WIDTH * 2 / best / 1e9;
}

extern "C" __attribute__((visibility("default"))) double read_gbytes(int64_t bytes) {
  const int64_t count = bytes / int64_t(sizeof(vec)) / 8 * 8;
  vec* data = static_cast<vec*>(aligned_alloc(64, count * sizeof(vec)));
  for (int64_t i = 0; i < count; i++) data[i] = vec{} + 1.0f;
  double best = 1e9;
  for (int run = 0; run < 20; run++) {
    vec a = {}, b = {}, c = {}, d = {};
    const double start = now();
    for (int64_t i = 0; i < count; i += 4) a += data[i], b += data[i + 1], c += data[i + 2], d += data[i + 3];
    a += b + c + d;
    KEEP(a);
    const double seconds = now() - start;
    best = seconds < best ? seconds : best;
  }
  free(data);
  return count * double(sizeof(vec)) / best / 1e9;
}
