// Zeros into many arrays where their masks are false, in one launch: gradients of masked weights. A block row (blockIdx.y)
// has an array; ITEM is the size of an element, whose bits are kept or cleared whatever they mean.
//
// Bound: every mask is read once. Of 16 bytes, those that are kept whole are not touched, and those that are cleared whole
// are not read.
#include "numbers.cuh"

#if ITEM == 2
typedef u16 Bits;
#elif ITEM == 4
typedef u32 Bits;
#else
typedef u64 Bits;
#endif

constexpr int WIDE = 16 / ITEM, ARRAYS = 64;

struct alignas(16) Wide {
  Bits e[WIDE];
};
struct alignas(WIDE) Flags {
  u8 e[WIDE];
};
struct Table {
  Bits* values[ARRAYS];
  const u8* mask[ARRAYS];
  i64 count[ARRAYS];
};

extern "C" __global__ void __launch_bounds__(256) clear(const __grid_constant__ Table table) {
  Bits* const values = table.values[blockIdx.y];
  const u8* const mask = table.mask[blockIdx.y];
  const i64 count = table.count[blockIdx.y], step = i64(gridDim.x) * 256;
  const i64 first = i64(blockIdx.x) * 256 + threadIdx.x;
  const bool aligned = !(u64(values) % 16 | u64(mask) % WIDE);
  const i64 whole = aligned ? count / WIDE : 0;
  for (i64 i = first; i < whole; i += step) {
    const Flags kept = reinterpret_cast<const Flags*>(mask)[i];
    int sum = 0;
#pragma unroll
    for (int e = 0; e < WIDE; e++) sum += kept.e[e];
    if (sum == WIDE) continue;
    Wide* const at = reinterpret_cast<Wide*>(values) + i;
    Wide held{};
    if (sum) {
      held = *at;
#pragma unroll
      for (int e = 0; e < WIDE; e++)
        if (!kept.e[e]) held.e[e] = 0;
    }
    *at = held;
  }
  for (i64 i = whole * WIDE + first; i < count; i += step)
    if (!mask[i]) values[i] = 0;
}
