// The mask [rows][cols] of 2:4 in rows and in columns with the highest sum of scores [rows][cols]; rows and cols are
// multiples of 4. A thread has a block of 4 x 4: it adds up the 6 pairs of each row, and compares all 90 masks, in the
// order in which gossamer/patterns/transposable_nm.py has them; of equal sums the first wins. Sums are float64, in which
// those of 8 float32 are exact unless they differ by 2^29. Floor: scores read once, a byte for each written.
#include "numbers.cuh"

constexpr double HUGE_SCORE = 0x1p1000;  // what infinite ones become, so that sums are no NaN

__device__ constexpr int pair_of(int i) {  // bits of the columns that are kept: 0 and 1, 0 and 2, ...
  return 0xca6953 >> (4 * i) & 15;
}

struct alignas(16) Four {
  float f[4];
};

__device__ __forceinline__ u32 bytes_of(int pair) {  // a byte of 1 for each bit
  return (pair & 1) | (pair & 2) << 7 | (pair & 4) << 14 | (pair & 8) << 21;
}

extern "C" __global__ void __launch_bounds__(128) transposable(const float* scores, u8* mask, i64 cols, i64 blocks) {
  const i64 i = i64(blockIdx.x) * 128 + threadIdx.x;
  after_the_kernel_before();
  if (i >= blocks) return;
  const i64 wide = cols / 4, at = i / wide * 4 * cols + i % wide * 4;
  double sums[4][6];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const Four row = *reinterpret_cast<const Four*>(scores + at + r * cols);
    double s[4];
#pragma unroll
    for (int c = 0; c < 4; c++) s[c] = row.f[c] > 3.4e38f ? HUGE_SCORE : row.f[c] < -3.4e38f ? -HUGE_SCORE : double(row.f[c]);
    sums[r][0] = s[0] + s[1], sums[r][1] = s[0] + s[2], sums[r][2] = s[0] + s[3];
    sums[r][3] = s[1] + s[2], sums[r][4] = s[1] + s[3], sums[r][5] = s[2] + s[3];
  }
  double best = 0;
  u32 chosen = 0;  // four bits a row; no mask is 0
#pragma unroll
  for (int a = 0; a < 6; a++)
#pragma unroll
    for (int b = 0; b < 6; b++)
#pragma unroll
      for (int c = 0; c < 6; c++)
#pragma unroll
        for (int d = 0; d < 6; d++) {
          const int p = pair_of(a), q = pair_of(b), r = pair_of(c), s = pair_of(d);
          // each column is in two rows: an even number of them (p ^ q ^ r ^ s), some (|), and not all four (&)
          if ((p ^ q ^ r ^ s) || (p | q | r | s) != 15 || (p & q & r & s)) continue;
          const double sum = (sums[0][a] + sums[1][b]) + (sums[2][c] + sums[3][d]);
          if (!chosen || sum > best) best = sum, chosen = p | q << 4 | r << 8 | s << 12;
        }
#pragma unroll
  for (int r = 0; r < 4; r++) *reinterpret_cast<u32*>(mask + at + r * cols) = bytes_of(chosen >> (4 * r) & 15);
}
