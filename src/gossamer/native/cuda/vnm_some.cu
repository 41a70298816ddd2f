// D = act(W X + bias) for a weight in packed V:N:M and some tokens, up to NB: bound by the bytes of W. wgmma.sp, on sm_90a.
//
// A cluster of CLUSTER blocks has 64 WM rows and all tokens; its blocks share the columns. One thread of a block keeps a ring
// of STAGES steps full: W by bulk copies, X (token-major, compacted where m > 4) by the copy engine, whose boxes have as many
// lines as there are tokens: lines beyond X are slow, 0.2 us each at 14336 x 4096. A warpgroup multiplies 64 rows; sums are
// added up over the cluster by distributed shared memory.
// AHEAD: the kernel before this one makes X, and began after all before it had ended. So W, which it does not write, can be
// asked for while it runs.
//
// Floor: the bytes of W. 14336 x 4096 on an H200 at 4.3 TB/s: 2:4 66 MB, 15.4 us; 2:8 33 MB, 7.7; e4m3 36.7 and 18.4 MB, 8.5
// and 4.3 us. Tensor cores need 4.9 us for 64 tokens at 2:4, and X comes from the second cache, 59 MB then.
//
// Macros: ELEMENT, WEIGHT, WM (1 or 2), NB, STAGES, ACT as in vnm_many.cu; CLUSTER, AHEAD. The rest is as vnm_many.cu would
// have it: FEEDERS = 128, WN = MT = 1, OUT = GATHER = 0, X_TOKENS = 1.
#include "many_feed.cuh"
#include "many_multiply.cuh"
#include "sums.cuh"

#define THREADS (FEEDERS + 128 * WM)

struct Range {  // of steps
  int first, count;
  __device__ __forceinline__ Range(const Problem& p, int rank) : first(p.steps * rank / CLUSTER), count(p.steps * (rank + 1) / CLUSTER - first) {}
};

// One thread: all steps of a tile.
__device__ __forceinline__ void produce(const Problem& p, const Map& x, unsigned smem, int tile, Range steps) {
  const int bytes = p.tokens * 128, ahead = AHEAD ? min(STAGES, steps.count) : 0;
  for (int s = 0; s < ahead; ++s) fetch_w(p, smem, tile, steps.first + s, s, bytes);
  wait_for_the_kernel_before();
  Ring ring;
#pragma unroll 1
  for (int s = 0; s < steps.count; ++s) {
    if (s >= STAGES) wait(empty_bar(smem, ring.slot), ring.phase ^ 1);
    if (s >= ahead) fetch_w(p, smem, tile, steps.first + s, ring.slot, bytes);
    tensor_load(smem + ring.slot * B_BYTES, &x, (steps.first + s) * 64, 0, full_bar(smem, ring.slot));
    ring.next();
  }
}

__device__ __forceinline__ void keep(const Sums& acc, float* sums, int wm, int warp, int lane) {
  constexpr int LINE = Lines<BM>::LINE;
  int row = wm * 64 + warp * 16 + (lane >> 2), token = 2 * (lane & 3);
#pragma unroll
  for (int j = 0; j < NB / 8; ++j)
#pragma unroll
    for (int q = 0; q < 4; ++q) sums[(8 * j + token + (q & 1)) * LINE + row + 8 * (q >> 1)] = float(acc[0][4 * j + q]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
  __cluster_dims__(CLUSTER, 1, 1)
#endif
  vnm_some(const __grid_constant__ Problem p, const __grid_constant__ Map x) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  int rank = blockIdx.x % CLUSTER, tile = blockIdx.x / CLUSTER;
  Range steps(p, rank);
  for (int i = threadIdx.x; i < STAGES * META_BYTES / 4; i += blockDim.x)  // below the last rows: valid, if unused
    *(unsigned*)(memory + SMEM_META + i * 4) = 0x44444444;
  fence_async();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_bar(full_bar(smem, i), 1);
      init_bar(empty_bar(smem, i), CONSUMERS * 4);
    }
    fence_bars();
  }
  __syncthreads();
  let_the_next_kernel_start();
  if (threadIdx.x < FEEDERS) {
    if (threadIdx.x == 0)
      produce(p, x, smem, tile, steps);
    else
      wait_for_the_kernel_before();
    __syncwarp();
    __syncthreads();  // nobody reads the ring any more
  } else {
    wait_for_the_kernel_before();
    int group = threadIdx.x / 128 - FEEDERS / 128, warp = (threadIdx.x / 32) & 3, lane = threadIdx.x & 31;
    Consumer c{smem, group, 0, warp, lane};
    Sums acc;
    c.multiply(acc, steps.count);
    __syncthreads();
    keep(acc, (float*)memory, group, warp, lane);
  }
  __syncthreads();
  add_up<BM, NB, 1, THREADS, CLUSTER>(p, smem, (float*)memory, tile * BM, rank);
}
