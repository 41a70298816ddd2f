// vnm_many.cu and vnm_some.cu: the warpgroups that multiply what is in the ring.
#pragma once
#include "many_tiles.cuh"
#include "wgmma.cuh"

using Sums = Sum[MT * NP][NB / 2];
constexpr int TURN = !X_TOKENS, HALF = X_TOKENS ? 64 : 4096;  // bytes to the second half of a step's columns of X
constexpr int SECOND = WEIGHT ? 0 : 1;  // who has the metadata of the second half
// Blocks of 64 rows in the ring, from one warpgroup to the next, and from one to the next of a warpgroup.
constexpr int TO_NEXT = GATED && MT == 2 ? 1 : MT, TO_OTHER = GATED && MT == 2 ? SPAN : 1;

// Metadata of a thread: a word for both halves of a step; of 8-bit operands one for each.
struct Metadata {
  unsigned half[WEIGHT ? 2 : 1];

  __device__ __forceinline__ void load(unsigned at) {
#if WEIGHT
    uint2 both = lds64(at);
    half[0] = both.x, half[1] = both.y;
#else
    half[0] = lds32(at);
#endif
  }
  __device__ __forceinline__ unsigned first() const { return half[0]; }
  __device__ __forceinline__ unsigned second() const { return half[WEIGHT ? 1 : 0]; }
};

struct Consumer {
  unsigned smem;
  int wm, wn, warp, lane;
  Ring ring;
  int by = 1;  // steps from one of this warpgroup's to the next

  __device__ __forceinline__ void release(int slot) {
    if (lane == 0) arrive(empty_bar(smem, slot));
  }

  __device__ __forceinline__ void ready() {
    wait(full_bar(smem, ring.slot), ring.phase);
    if (GATHER) fence_async();  // what cp.async wrote is read by the tensor cores
  }

  // Where the values, the metadata and X of this thread lie in the ring.
  __device__ __forceinline__ unsigned values() const {
    return smem + SMEM_A + ring.slot * A_BYTES + wm * TO_NEXT * 4096 + warp * 1024 + lane * 16;
  }
  __device__ __forceinline__ unsigned meta() const {
    return smem + SMEM_META + ring.slot * META_BYTES + wm * TO_NEXT * META + warp * (META / 4) + lane * (META / 128);
  }
  __device__ __forceinline__ unsigned long long x() const {
    return descriptor(smem + ring.slot * B_BYTES + wn * NP * NB * 128, 8192, 1024);
  }

#if MIXED
  // Three warpgroups have registers for half a step of W each: what one loads is hidden behind the products of the others.
  __device__ __forceinline__ void multiply(Sums& acc, int steps) {
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      ready();
      Metadata m;
      m.load(meta());
      unsigned at = values();
      unsigned long long desc = x();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 a = lds128(at + half * 512);
        begin_products();
#pragma unroll
        for (int part = 0; part < NP; ++part)
          if (half == 0)
            wgmma_sp<0, TURN>(acc[part], a, desc + part * (NB * 128 >> 4), m.first(), s > 0);
          else
            wgmma_sp<SECOND, TURN>(acc[part], a, desc + part * (NB * 128 >> 4) + (HALF >> 4), m.second(), 1);
        commit_products();
        wait_for_products<0>();
        hold(a, half == 0 ? m.first() : m.second());
      }
      release(ring.slot);
      ring.next();
    }
  }

  // A tile in which this warpgroup has no rows.
  __device__ __forceinline__ void skip(int steps) {
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      ready();
      release(ring.slot);
      ring.next();
    }
  }
#else
  struct Fragment {  // 64 rows of W in a step
    uint4 a[2];
    Metadata meta;

    __device__ __forceinline__ void hold() const {  // its registers are read until the product is complete
      ::hold(a[0], meta.first());
      ::hold(a[1], meta.second());
    }
  };

  int held = -1;  // the slot that the product in flight reads

  // One step, of number 2 n + ODD. Two fragments take turns: one is loaded while the product of the other runs.
  template <int ODD>
  __device__ __forceinline__ void step(Sums& acc, Fragment (&f)[2], bool first) {
    ready();
    unsigned at = values(), metadata = meta();
    unsigned long long desc = x();
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      constexpr int SINGLE = MT == 1 ? ODD : 0;
      Fragment& now = f[(i + SINGLE) & 1];
      now.a[0] = lds128(at + i * TO_OTHER * 4096), now.a[1] = lds128(at + i * TO_OTHER * 4096 + 512);
      now.meta.load(metadata + i * TO_OTHER * META);
      begin_products();
      wgmma_sp<0, TURN>(acc[i], now.a[0], desc, now.meta.first(), !first);
      wgmma_sp<SECOND, TURN>(acc[i], now.a[1], desc + (HALF >> 4), now.meta.second(), 1);
      commit_products();
      wait_for_products<1>();
      f[(i + SINGLE + 1) & 1].hold();
      if (i == 0) {  // the last product of the step before is complete
        if (held >= 0) release(held);
        held = ring.slot;
      }
    }
    ring.next(by);
  }

  __device__ __forceinline__ void multiply(Sums& acc, int steps) {
    Fragment f[2];
    for (int s = 0; s < steps; s += 2) {
      step<0>(acc, f, s == 0);
      if (s + 1 < steps) step<1>(acc, f, false);
    }
    wait_for_products<0>();
    f[0].hold(), f[1].hold();
    release(held);
    held = -1;
  }
#endif
};
