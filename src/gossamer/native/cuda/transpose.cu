// out [cols][ldo] = x [rows][ld] transposed. A thread turns a square, 16 bytes wide and high, in its registers: no shared
// memory, no barrier, and 128 bytes on their way for each thread at half precision. A warp has 8 squares down and 4 across:
// it reads 64 bytes of a line and writes 128. Floor: every byte read and written once.
//
// out and its lines start at multiples of 16 bytes; what lies between rows and ldo is padding, and becomes zero.
// `aligned`: so do x and its lines; where not, and at its edges, x is read one by one.
#include "numbers.cuh"

constexpr int WIDE = 16 / sizeof(Element);
constexpr int SIDE = 16;  // squares of a block, down and across

struct alignas(16) Wide {
  Element e[WIDE];
};

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
transpose(const Element* x, i64 ld, Element* out, i64 ldo, i64 rows, i64 cols, i64 aligned) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 row = (i64(blockIdx.y) * SIDE + (warp >> 2) * 8 + (lane >> 2)) * WIDE;
  const i64 col = (i64(blockIdx.x) * SIDE + (warp & 3) * 4 + (lane & 3)) * WIDE;
  if (row >= ldo || col >= cols) return;
  const Element* from = x + row * ld + col;
  Wide in[WIDE];
  if (aligned && row + WIDE <= rows && col + WIDE <= cols) {
#pragma unroll
    for (int r = 0; r < WIDE; r++) in[r] = *reinterpret_cast<const Wide*>(from + r * ld);
  } else {
#pragma unroll
    for (int r = 0; r < WIDE; r++)
#pragma unroll
      for (int c = 0; c < WIDE; c++) in[r].e[c] = row + r < rows && col + c < cols ? from[r * ld + c] : Element(0);
  }
#pragma unroll
  for (int c = 0; c < WIDE; c++) {
    if (col + c >= cols) break;
    Wide turned;
#pragma unroll
    for (int r = 0; r < WIDE; r++) turned.e[r] = in[r].e[c];
    *reinterpret_cast<Wide*>(out + (col + c) * ldo + row) = turned;
  }
}
