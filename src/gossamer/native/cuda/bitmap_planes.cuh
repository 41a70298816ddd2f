// bitmap.cu with WEIGHT 1: from two planes of e4m3 to the registers of mma.sp.m16n8k32 in float16.
//
// The order is that of kernels/bitmap/planes.py. The first plane has a word of two values for every group of four, so a lane
// loads it by 16 bytes, and its metadata as the hardware reads it. Only the second plane, of groups that keep three or four,
// is searched: one multiplication adds up the words of a pair before each group.
//
// compute capability 9.0 has no mma.sync of e4m3: ptxas makes more than 100 instructions of mma.sp.m16n8k64, with shuffles of
// both operands. One instruction makes two float16 of two e4m3, and products of these are exact. x comes in float16, rounded
// to e4m3 by quantize.cu, so that results are those of the other layouts.
#pragma once
#include "tensor_cores.cuh"

constexpr int PIECE_BITS = 384, ROW = 16, FIRST = 1024;  // bytes
constexpr unsigned SECOND = 0xeeeeeeee;                  // metadata: places 2 and 3

// What a lane has of a piece.
struct Planes {
  uint4 first[2];  // of each pair: eight words
  unsigned meta[2], flags, at;

  __device__ __forceinline__ Planes(unsigned bits, unsigned lane) {
    const uint2 two = lds64(bits + lane * 8);
    meta[0] = two.x, meta[1] = two.y;
    flags = lds32(bits + 256 + lane * 4);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) first[pair] = lds128(bits + PIECE_BITS + pair * 512 + lane * 16);
    at = bits + PIECE_BITS + FIRST + (dot4(flags & 0xcccccccc, 0x00ff0401, 0) >> 1);  // four times the words, in bytes
  }

  // The registers of a pair, by step and plane.
  template <int PAIR>
  __device__ __forceinline__ void decode(unsigned (&a)[2][2][4]) {
    const unsigned words[4] = {first[PAIR].x, first[PAIR].y, first[PAIR].z, first[PAIR].w};
    const unsigned mine = flags >> PAIR & 0x11111111, before = mine * 0x11111110;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const unsigned begin = n ? at + ((before & 15u << 4 * n) >> (n ? 4 * n - 1 : 0)) : at;
      a[n / 4][0][n % 4] = n % 2 ? halves_of_e4m3<1>(words[n / 2]) : halves_of_e4m3<0>(words[n / 2]);
      a[n / 4][1][n % 4] = halves_of_e4m3<0>(half_if(begin, flags, 1u << PAIR << 4 * n));
    }
    at += (mine * 0x11111111 >> 28) * 2;
  }
};
