// Products of int8 weights and activations in eight bits: what the kernels read and compute. Pointers and sizes, no torch.
//
// A weight is  w = scale[row] * v,  v an int8 in -127 .. 127. An activation of token t is  x = scale[t] * (q - zero[t]),
// q in 0 .. 254. An output is
//     act(scale[row] * scale[t] * (sum over columns of v * q  -  zero[t] * sum[row]) + bias[row] + add[t][row]),
// with sum[row] the sum of the row's v. The sums are exact in 32 bits for up to MOST_COLS columns, so they are the same in
// any order: for any number of threads, tokens and instruction sets. q ends at 254 and not at 255, so that q - 127 is a
// signed byte with a negative, which AVX2 without VNNI needs (int8_vec.h); it costs 0.4 % of the resolution.
//
// Four ways to store a weight:
//
// DENSE. Sixteen rows are a group. values[group][column / 4][row % 16][column % 4], padded with zeros.
//
// LOOKUP (any pattern; rows are the lanes of a vector). Sixteen units of `tall` rows are a group: a unit is a row, or four
// rows that keep the same columns (blocks of 4x1). A *step* holds four columns of each unit: crd[step][unit][4], and their
// values[step][row of the unit][unit][4]. With wide == 4 (blocks of 1x4 and 4x4) these are columns 4 c .. 4 c + 3 of the
// window, and only c is stored: crd[step][unit]. All columns of a step lie in one *window* of WINDOW columns: line[step] says
// which one of its tile, and crd the place in it. Window w begins at column  w * stride; windows overlap where stride is
// less than WINDOW, so a unit that keeps more than others in a window can take some of it in the next one. `lines` windows
// are a tile: their activations fit into the first-level cache. The steps come in the order of the loops: blocks of BLOCK
// rows, in one its tiles, in one its groups; pos has the first step of each, and one number more. With tall == 4, unit  4 * (l % 4) + l / 4  is in lane l, so that
// four rows of sixteen units become sixty-four rows in order by shuffles inside of 128 bits.
//
// LINES (blocks of 1x4; tokens are the lanes). Rows go four at a time, sorted by how many blocks they keep among the
// `block` rows and `lines` columns of blocks (at most 255) of a tile. Steps [pos[u], pos[u + 1]) of unit
// u = (block of rows * tiles + tile) * block / 4 + i  hold a block of each of its four rows: row[4 * u + r] of the block of
// rows, crd[step][r] the column of blocks in the tile, values[step][r][4].
//
// BITMAP (any pattern). The values of DENSE that the pattern keeps, in the same order, and a bit for each position:
// crd[group][column / 4] are 64 bits, bit 4 * (row % 16) + column % 4. The values of a group begin at values[pos[group]];
// behind the last one are 64 bytes more, which may be read. `steps` is the number of values.
//
// A DENSE weight with masked == 1 carries its mask in crd, a bit for each position, each row from a new byte on: no kernel
// reads it. x_scale, the bits of a float, and x_zero are the range of activations where it is fixed; x_scale 0: it is not.
//
// Unused places have the value 0 and the crd 255 (LOOKUP) or `lines` (LINES).
//
// All of a weight is one array of bytes, so that a call has few arguments: sixteen 64-bit numbers, HEAD, kind, rows, cols,
// lines, stride, tall, wide, window, steps, masked, x_scale, x_zero, and what no kernel reads: kernel_h, kernel_w and groups of a convolution. Then scale, sum, pos, crd, line or row, and values, each padded to a multiple of 64 bytes.
#pragma once
#include <cstdint>

#include "bf16.h"

namespace gossamer {

constexpr int64_t HEAD = 0x3130386574687367;  // a weight in eight bits, version 1
constexpr int64_t WINDOW = 64, GROUP = 16, BLOCK = 768, MOST_COLS = 65536;

enum Int8Kind : int64_t { INT8_DENSE = 0, INT8_LOOKUP = 1, INT8_LINES = 2, INT8_BITMAP = 3 };
enum Number : int64_t { NUMBER_FLOAT = 0, NUMBER_BF16 = 1, NUMBER_UINT8 = 2 };

struct Int8Weight {
  int64_t kind;
  int64_t rows, cols;
  const int8_t* values;
  const float* scale;    // [rows]
  const int32_t* sum;    // [rows]
  const int32_t* pos;
  const uint8_t* crd;
  const uint8_t* line;   // LOOKUP: [steps]
  const uint8_t* row;    // LINES: [units * 4]
  int64_t lines;         // of a tile
  int64_t stride;        // LOOKUP
  int64_t tall, wide;    // LOOKUP: 1 or 4
  int64_t window;        // LOOKUP: no crd is as large; at most WINDOW
  int64_t block;         // LINES: rows of a block, a multiple of 16 up to 256
  int64_t steps;
  float x_scale;         // 0: each token has its own range
  int32_t x_zero;

  int64_t places() const { return kind == INT8_LINES ? 4 : WINDOW / wide; }  // of crd in a step; not of BITMAP
  int64_t quads() const { return (cols + 3) / 4; }
  int64_t units() const {  // of rows, which no two items of work share
    const int64_t each = kind == INT8_LINES ? block : GROUP * (kind == INT8_LOOKUP ? tall : 1);
    return (rows + each - 1) / each;
  }
  int64_t windows() const { return cols <= window ? 1 : (cols - window + stride - 1) / stride + 1; }
  int64_t tiles() const {
    if (kind == INT8_BITMAP) return 1;
    const int64_t all = kind == INT8_LINES ? quads() : windows();
    return all ? (all + lines - 1) / lines : 1;
  }
  int64_t parts() const { return units() * tiles() * (kind == INT8_LINES ? block / 4 : 1); }  // that pos tells the starts of
};

// The weight in `size` bytes; returns what is wrong with them, or null. What the arrays hold is checked where they are made.
const char* int8_weight(const uint8_t* data, int64_t size, Int8Weight* a);

// Images in eight bits, [images, height, width, channels] with their padding. A token is a pixel of the result. Its
// activations are a patch: `runs` runs of consecutive bytes, in the order of the weight's columns, which is row of the
// kernel, position in that row, channel.
struct Int8Patches {
  const uint8_t* data;          // WINDOW bytes behind the last may be read
  int64_t height, width;        // of the result
  int64_t image, line, step;    // bytes to the next image, to the patch below, and to the patch on the right
  int64_t runs, run;            // and the bytes of a run
  const int64_t* start;         // [runs]: of a run, from the first byte of its patch
};

struct Int8Product {
  Int8Weight a;
  const void* x;           // [tokens, cols] with leading stride ldx, of x_type
  int64_t x_type, ldx, tokens;
  const float* x_scale;    // null: by each token's smallest and largest value; not for x of uint8
  const int32_t* x_zero;
  int64_t x_each;          // 1: a scale and a zero for each token; 0: the same for all
  const Int8Patches* patches;  // instead of x, or null; then there is a scale and a zero for each image
  const float* bias;       // [rows] or null
  const float* add;        // [tokens, rows] with leading stride ldo, or null; not for out in the order of planes
  int64_t activation;
  void* out;               // [tokens, rows] with leading stride ldo, of out_type
  int64_t out_type, ldo;
  int64_t plane;           // pixels of an image if out is [images, rows, pixels], else 0; not for out of uint8
  float out_scale;         // for out of uint8
  int32_t out_zero;
};

struct Int8Tokens {        // quantise alone: q[tokens, cols] contiguous, scale[tokens], zero[tokens]
  const void* x;
  int64_t x_type, ldx, tokens, cols;
  const float* x_scale;
  const int32_t* x_zero;
  int64_t x_each;
  uint8_t* q;
  float* scale;
  int32_t* zero;
};

struct Int8Images {        // quantise images, each with one range, and pad them with the byte of 0
  const void* x;           // [images, height, width, channels] contiguous, of x_type; or [images, channels, height, width]
  int64_t x_type, planes;  // planes: 1 for the second order; not for bytes, which have their range already
  int64_t images, height, width, channels;
  int64_t top, bottom, left, right;
  const float* x_scale;    // [1], or null: by each image's smallest and largest value
  const int32_t* x_zero;
  int32_t* high;           // [images * height]: the bits of the largest value of a row of pixels, and of the smallest
  uint32_t* low;
  uint8_t* q;              // [images, top + height + bottom, left + width + right, channels]
  float* scale;            // [images]
  int32_t* zero;
};

// One set of these for each instruction set; `begin`, `end` are items of work, which no two threads share. A token with a
// NaN or an infinity gets the scale NaN, and so outputs that are NaN; product() returns false if out is of uint8, which
// has no NaN, and there is such an output.
struct Int8Kernels {
  const char* name;
  int64_t window;                                              // the widest that it looks up by one instruction
  int64_t (*items)(const Int8Product&);
  bool (*product)(const Int8Product&, int64_t begin, int64_t end);
  void (*quantize)(const Int8Tokens&, int64_t begin, int64_t end);  // items: tokens
  // Of images, one after the other: high and low (items: images * height), scale and zero, q (items: rows of it), and in
  // the order of planes, of which image_rows writes the padding only, the rest of q (items: images * groups of 16 channels)
  void (*image_extremes)(const Int8Images&, int64_t begin, int64_t end);
  void (*image_ranges)(const Int8Images&);
  void (*image_rows)(const Int8Images&, int64_t begin, int64_t end);
  void (*image_planes)(const Int8Images&, int64_t begin, int64_t end);
};

extern const Int8Kernels int8_baseline;
#if defined(__x86_64__)
extern const Int8Kernels int8_avx2, int8_avxvnni, int8_avx512vnni, int8_avx512vbmi, int8_amx;
#endif
const Int8Kernels& int8_kernels();                             // the best that this processor runs
const Int8Kernels* int8_kernels_named(const char* name);       // null: not here

}  // namespace gossamer
