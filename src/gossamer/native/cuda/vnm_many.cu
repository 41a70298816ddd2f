// D = act(W X + bias) for a weight in packed V:N:M and many tokens: wgmma.sp with A in registers, on sm_90a. Operands of 16
// or 8 bits; of 8, rows of W and tokens of X have scales: D = act(scale scale W X + bias).
//
// A block takes tiles of BM rows x BN tokens, one after the other. FEEDERS of its threads feed a ring of STAGES buffers:
// 64 compacted columns of W by bulk copies, and the rows of X that they need, gathered 16 bytes at a time by cp.async into
// 128-byte swizzled shared memory; where all columns are needed (m = 4), one thread has the copy engine bring boxes of X.
// Two warpgroups multiply, or three, W from shared memory to registers, in whose order it lies.
//
// Bounds on an H200, for a step of 64 columns: wgmma reads B again for every 64 rows, X is written, W written and read, at
// 128 bytes a cycle. That is 928 cycles for 256 rows x 128 tokens and 890 for 128 x 256, of which tensor cores need 512 at
// their peak; 1240 for 192 x 256, 7 % less for the same work. Three warpgroups have the registers for that: 160 each, for
// one fragment of W (none of its loads is hidden behind its own products, but behind those of the other two); 8 blocks of
// 64 rows become tiles of 2, 3 and 3, so that no processor has more to do than another. 2:4 took 130 us before, 124 now.
// All of it runs at the power limit: for seconds on end, cuBLAS at 1335 MHz of 1980 and 2:4 at 1425 (209 and 157 us).
// The result of 4096 x 4096 costs 5 us in any case (43 us at 2:16, 38 if nothing is stored): the copy engine alone writes
// its 33 MB in 8 us, torch's fill_ in 11.
// Tried, and slower: W straight from global memory to registers (L2 is then the bound, and its latency); pairs of blocks
// that share W by multicast (no change), or X (1.8 times as long); bulk copies of 4 KB of W (30 % slower: hence the
// order of the values); results through shared memory and one bulk copy a row (the copies are too small); arriving at
// barriers after cp.async.wait_group and a proxy fence in the feeding threads (the fence waits for all copies in flight);
// tiles of 256 x 176; three warpgroups with gathered columns (128 threads are too few to gather 256 tokens: 79.6 us for
// 76.8 at 2:8); a warpgroup two or four steps ahead of the other, so that one stores while the other multiplies (the ring
// is then too short: 0 to 2 % slower, and 3 % faster at 2:100); two blocks a processor of 128 x 128 (29.5 us for 26.8 at
// 2:32); three or four buffers of results for two (no change); every warp sending its own (1 to 3 % slower, but where there
// is one buffer only, 1 % faster).
//
// Macros: ELEMENT (0 float16, 1 bfloat16: of D, and of X and W if) WEIGHT (is 0; 1 e4m3, 2 int8: GATHER = 0 and X_TOKENS = 1
// only), WM x WN warpgroups of MT x 64 rows and NB tokens (2 NB where they are three),
// FEEDERS (128 or 256; NB = 256 leaves registers for 128 only; GATHER = 0 needs no more than 128), STAGES, OUT (blocks of
// 64 x 64 results that a warpgroup has on their way; 0: it stores from registers), BOX (lines of a block that leave
// together: 64, or 16 where there is one buffer and D is feature-major), GATHER (0: all columns, m = 4), X_TOKENS (1: X is
// token-major; GATHER = 0 only), Y_TOKENS (1: D is token-major), ACT (0 none, 1 relu, 2 gelu, 3 silu), GATED (1: see
// many_tiles.cuh; MT = 2, WN = 1, OUT > 0 and X_TOKENS = Y_TOKENS = 1 only).
#include "many_feed.cuh"
#include "many_results.cuh"

__device__ __forceinline__ void consume(const Problem& p, const Second& second, const Map& map, unsigned smem) {
  int group = threadIdx.x / 128 - FEEDERS / 128, warp = (threadIdx.x / 32) & 3, lane = threadIdx.x & 31;
  Consumer c{smem, group % WM, group / WM, warp, lane};
  Tiles tiles(p);
  [[maybe_unused]] int slot = 0;
  for (int tile = tiles.first; tile < tiles.end; tile += tiles.stride) {
    int tile_m = tile % p.tiles_m, row = (first_block(tile_m) + c.wm * TO_NEXT) * 64;
    int n0 = tile / p.tiles_m * BN + c.wn * NP * NB;
#if MIXED
    if (c.wm >= blocks_of(p, tile_m)) {
      c.skip(p.steps);
      continue;
    }
#endif
    Sums acc;
    c.multiply(acc, p.steps);
#if OUT
    if (p.bias)
      send<true>(p, second, map, smem, acc, group, row, n0, slot);
    else
      send<false>(p, second, map, smem, acc, group, row, n0, slot);
#else
#pragma unroll
    for (int i = 0; i < MT * NP; ++i) {
      int first = row + i / NP * 64 + warp * 16, n = n0 + i % NP * NB;
      if (p.bias)
        store<true>(p, acc[i], first, n, lane);
      else
        store<false>(p, acc[i], first, n, lane);
    }
#endif
  }
  wait_until_read<0>();  // the end of the kernel waits for the rest
}

extern "C" __global__ void __launch_bounds__(FEEDERS + 128 * CONSUMERS, 1)
#if GATED
vnm_many(const __grid_constant__ Problem p, const __grid_constant__ Map y, const __grid_constant__ Map x, const __grid_constant__ Second second) {
  static_assert(MT == 2 && WN == 1 && OUT && !GATHER && X_TOKENS && Y_TOKENS);
#else
vnm_many(const __grid_constant__ Problem p, const __grid_constant__ Map y, const __grid_constant__ Map x) {
  const Second second{};
#endif
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned smem = (unsigned)__cvta_generic_to_shared(memory);
  for (int i = threadIdx.x; i < STAGES * META_BYTES / 4; i += blockDim.x)  // below the last rows: valid, if unused
    *(unsigned*)(memory + SMEM_META + i * 4) = 0x44444444;
  fence_async();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_bar(full_bar(smem, i), GATHER ? FEEDERS + 1 : 1);
      init_bar(empty_bar(smem, i), CONSUMERS * 4);
    }
    fence_bars();
  }
  __syncthreads();
  after_the_kernel_before();
  if (threadIdx.x < FEEDERS) {
    fewer_registers<!GATHER ? 24 : FEEDERS == 128 ? 72 : 40>();
    produce(p, second, x, smem);
  } else {
    more_registers<MIXED ? 160 : GATHER ? 216 : 240>();
    consume(p, second, y, smem);
  }
}
