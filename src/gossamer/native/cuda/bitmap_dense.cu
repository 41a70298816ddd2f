// A packed bitmap as a dense matrix: for products with many tokens, which cuBLAS does.
//
// A warp has a piece of 16 x 128 and a lane its stream of words, group by group (formats/levels/pieces.py).
// Floor: the bytes of the bitmap, and those of the dense matrix: 47 us for 14336 x 4096 at 50 % on an H200.
#include "numbers.cuh"

constexpr u64 KEPT = 0xfca9b7651423d8e0;  // by code, four bits each: which places of a group are kept
constexpr int WORDS = 72;                // of a piece: codes, the columns that lanes go on in, and rows of single values
constexpr unsigned SINGLE = 0x6016;      // by what is kept: is the first value a single one?

// Where a lane reads next: rows of words, and of single values.
struct Reader {
  int word, single;
};

// The next group of a lane: zeros where nothing is kept.
struct Group {
  Element value[4] = {};

  // `column`: of the lane, in rows of 64 values. `pair`: which half of a row of single values.
  __device__ __forceinline__ Group(const Element* column, Reader& at, int pair, int code) {
    const int kept = int(KEPT >> 4 * code) & 15, single = SINGLE >> kept & 1, first = single ? kept & -kept : 0;
    const int rest = kept & ~first, count = __popc(unsigned(rest));
    int n = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (first >> i & 1) value[i] = column[at.single * 64 + pair];
      if (!(rest >> i & 1)) continue;
      const int slot = count > 2 ? i : rest == 8 ? 1 : n;
      value[i] = column[(at.word + slot / 2) * 64 + slot % 2];
      n++;
    }
    at.word += (count + 1) / 2, at.single += single;
  }
};

extern "C" __global__ void __launch_bounds__(128)
bitmap_dense(const Element* values, const u32* bits, const int* pos, Element* dense, i64 rows, i64 cols, i64 steps) {
  after_the_kernel_before();
  const int lane = threadIdx.x % 32, t = lane % 4;
  const i64 step = i64(blockIdx.x) * 4 + threadIdx.x / 32, piece = i64(blockIdx.y) * steps + step;
  if (step >= steps) return;
  const u32* codes = bits + piece * WORDS;
  const int change = codes[64 + lane / 4] >> lane % 4 * 8 & 255, next = change & 31;
  int column = lane;
  Reader at{(change >> 5) + 1, 0};
  for (int n = 0; n < 16; n++) {  // pair, high, step, upper
    if (n == 8) at = {__shfl_sync(0xffffffff, at.word, next), 0}, column = next;
    const int code = codes[lane * 2 + n / 8] >> 4 * (n % 8) & 15;
    const Group group(values + i64(pos[piece]) * 64 + column * 2, at, n / 8, code);
    const i64 row = i64(blockIdx.y) * 16 + n / 4 % 2 * 8 + lane / 4, col = step * 128 + n / 8 * 64 + n % 4 * 16 + t * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (row < rows && col + i < cols) dense[row * cols + col + i] = group.value[i];
  }
}
