// A CUDA driver for test_launch.py: a "kernel" is a function of this library, called with its arguments.
#include <cstdint>
#include <cstring>

#pragma GCC visibility push(default)
extern "C" {
struct Config {
  uint32_t grid[3], threads[3], shared;
  void* stream;
  const void* attributes;
  uint32_t count;
};
int refused = 0;
uint32_t last_grid[3];

int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void**) {
  if (refused) return 1;
  std::memcpy(last_grid, config->grid, sizeof(last_grid));
  reinterpret_cast<void (*)(void**)>(function)(arguments);
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int, uint32_t, void* at, const uint64_t* sizes, const uint64_t*, const uint32_t*, const uint32_t*, int, int, int, int) {
  std::memcpy(map, &at, 8);
  std::memcpy(static_cast<char*>(map) + 8, sizes, 16);
  return 0;
}
int cuCtxGetCurrent(void** context) { *context = nullptr; return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_NOTHING_WORKS"; return 0; }

// y = x + bias, or x where there is no bias, and the width of the map's matrix added to all.
void add(void** arguments) {
  struct Problem { const float *x, *bias; float* y; int64_t count; } p;
  std::memcpy(&p, arguments[0], sizeof(p));
  uint64_t width;
  std::memcpy(&width, static_cast<char*>(arguments[1]) + 8, 8);
  for (int64_t i = 0; i < p.count; i++) p.y[i] = p.x[i] + (p.bias ? p.bias[i] : 0) + float(width);
}
}
