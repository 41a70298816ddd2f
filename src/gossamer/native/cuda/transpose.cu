// out [cols][ldo] = x [rows][ld] transposed, 64 x 64 at a time through shared memory. Floor: every byte read and written
// once. Reads and writes are 16 bytes a thread, in lines of 128 bytes; edges, and what is not aligned, go one by one.
#include "numbers.cuh"

#define TILE 64
#define WIDE int(16 / sizeof(Element))
#define PITCH (TILE + 4 / int(sizeof(Element)))  // one bank more than the tile: columns are read without conflict

struct alignas(16) Wide {
  Element e[16 / sizeof(Element)];
};

extern "C" __global__ void __launch_bounds__(256)
transpose(const Element* x, i64 ld, Element* out, i64 ldo, i64 rows, i64 cols, i64 aligned) {
  __shared__ Element tile[TILE * PITCH];
  const i64 row0 = i64(blockIdx.y) * TILE, col0 = i64(blockIdx.x) * TILE;
  constexpr int chunks = TILE / WIDE;
  constexpr int mine = TILE * chunks / 256;  // chunks of a thread, all on their way before the first is stored
  Wide held[mine];
#pragma unroll
  for (int n = 0; n < mine; n++) {
    const int i = threadIdx.x + n * 256, r = i / chunks, c = i % chunks * WIDE;
    const Element* from = x + (row0 + r) * ld + col0 + c;
    if (aligned && row0 + r < rows && col0 + c + WIDE <= cols) {
      held[n] = *reinterpret_cast<const Wide*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < WIDE; e++) held[n].e[e] = row0 + r < rows && col0 + c + e < cols ? from[e] : Element(0);
    }
  }
#pragma unroll
  for (int n = 0; n < mine; n++) {
    const int i = threadIdx.x + n * 256, r = i / chunks, c = i % chunks * WIDE;
#pragma unroll
    for (int e = 0; e < WIDE; e++) tile[r * PITCH + c + e] = held[n].e[e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < TILE * chunks; i += 256) {
    const int c = i / chunks, r = i % chunks * WIDE;
    if (col0 + c >= cols) continue;
    Element* to = out + (col0 + c) * ldo + row0 + r;
    Wide wide;
#pragma unroll
    for (int e = 0; e < WIDE; e++) wide.e[e] = tile[(r + e) * PITCH + c];
    if (aligned && row0 + r + WIDE <= ldo) {  // what lies between rows and ldo is padding: zeros
      *reinterpret_cast<Wide*>(to) = wide;
    } else {
      for (int e = 0; e < WIDE; e++)
        if (row0 + r + e < ldo) to[e] = wide.e[e];
    }
  }
}
