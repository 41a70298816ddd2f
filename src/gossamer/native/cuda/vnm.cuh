// Where things lie in packed V:N:M; the order is argued for in gossamer/formats/pairs.py.
#pragma once
#include "numbers.cuh"

struct Vnm {
  const Element* values;  // [steps][tiles][strip 4][half 2][thread 32][8]
  const u32* meta;        // [steps][tiles][strip 4][thread 32]
  const u8* cols;         // [blocks of v rows][16 steps][4]; null for m = 4
  i64 rows, width, steps, v, m;  // v = 0: all rows are one block

  // Number of the pair of values of a row and a group; its two values are at twice that.
  __device__ __forceinline__ i64 pair(i64 row, i64 group) const {
    const i64 tile = (group >> 4) * ((rows + 63) >> 6) + (row >> 6);
    const i64 strip = row >> 4 & 3, high = row >> 3 & 1, low = row & 7;
    const i64 half = group >> 3 & 1, upper = group >> 2 & 1, lane = group & 3;
    return ((((tile * 4 + strip) * 2 + half) * 32 + low * 4 + lane) * 2 + upper) * 2 + high;
  }

  // Columns of that pair; a column past the last is one at or beyond `width`.
  __device__ __forceinline__ void columns(i64 row, i64 group, i64* first, i64* second) const {
    const i64 tile = (group >> 4) * ((rows + 63) >> 6) + (row >> 6);
    const i64 word = (tile * 4 + (row >> 4 & 3)) * 32 + (row & 7) * 4 + (group >> 3 & 1) * 2 + (group >> 2 & 1);
    const u32 bits = meta[word] >> ((row >> 3 & 1) * 16 + (group & 3) * 4);
    const u32 a = bits & 3, b = bits >> 2 & 3;
    if (m == 4) {
      *first = group * 4 + a, *second = group * 4 + b;
      return;
    }
    const u8* shared = cols + ((v ? row / v : 0) * steps * 16 + group) * 4;
    *first = group * m + shared[a], *second = group * m + shared[b];
  }
};
