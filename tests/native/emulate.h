// Enough of CUDA to run a kernel on a CPU, one block at a time: each thread of the block a thread of the machine where
// the kernel has barriers, else a turn of a loop. Slow and exact: it shows a wrong index, not a race.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
thread_local Index threadIdx;
static Index blockIdx, blockDim, gridDim;

static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static std::vector<uint64_t> exchange;

inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void __syncwarp(unsigned = ~0u) { warp_barriers[threadIdx.x / 32]->arrive_and_wait(); }
inline float __int_as_float(int i) { float f; std::memcpy(&f, &i, 4); return f; }
inline int __float_as_int(float f) { int i; std::memcpy(&i, &f, 4); return i; }
template <class T> T __ldg(const T* p) { return *p; }
inline int min(int a, int b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }

template <class T> T shuffle(T value, unsigned from) {
  std::memcpy(&exchange[threadIdx.x], &value, sizeof(T));
  __syncwarp();
  T got;
  std::memcpy(&got, &exchange[(threadIdx.x & ~31u) + (from & 31)], sizeof(T));
  __syncwarp();
  return got;
}
template <class T> T __shfl_sync(unsigned, T value, int from) { return shuffle(value, unsigned(from)); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return shuffle(value, (threadIdx.x & 31) ^ unsigned(mask)); }
template <class T> T __shfl_down_sync(unsigned, T value, int by) {
  const unsigned lane = threadIdx.x & 31;
  return shuffle(value, lane + by > 31 ? lane : lane + by);
}

template <class T> T take(const char*& at, const char* base) {
  at = base + (size_t(at - base) + alignof(T) - 1) / alignof(T) * alignof(T);
  T value;
  std::memcpy(&value, at, sizeof(T));
  at += sizeof(T);
  return value;
}

template <class... A>
void run(void (*kernel)(A...), const char* buffer, unsigned gx, unsigned gy, unsigned gz, unsigned threads, bool together) {
  const char* at = buffer;
  std::tuple<A...> arguments{take<A>(at, buffer)...};
  gridDim = {gx, gy, gz}, blockDim = {threads, 1, 1};
  exchange.assign(threads, 0);
  block_barrier = std::make_unique<std::barrier<>>(threads);
  warp_barriers.clear();
  for (unsigned w = 0; w < threads; w += 32) warp_barriers.push_back(std::make_unique<std::barrier<>>(threads - w < 32 ? threads - w : 32));
  for (unsigned z = 0; z < gz; z++)
    for (unsigned y = 0; y < gy; y++)
      for (unsigned x = 0; x < gx; x++) {
        blockIdx = {x, y, z};
        auto one = [&](unsigned t) {
          threadIdx = {t, 0, 0};
          std::apply(kernel, arguments);
        };
        if (!together) {
          for (unsigned t = 0; t < threads; t++) one(t);
          continue;
        }
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < threads; t++) running.emplace_back(one, t);
      }
}
