// The arrays of an int8 weight in its bytes (int8.h). Built for the oldest processor.
#include <cstring>

#include "int8.h"

namespace gossamer {

static int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static const char* wrong_sizes(const Int8Weight& a) {
  if (a.kind < INT8_DENSE || a.kind > INT8_BITMAP) return "kind must be 0 dense, 1 lookup, 2 lines or 3 bitmap";
  if (a.rows < 0 || a.rows > int64_t(1) << 31) return "rows must lie in 0 .. 2^31";
  if (a.cols < 0 || a.cols > MOST_COLS) return "cols must lie in 0 .. 65536";
  if (a.steps < 0 || a.steps > int64_t(1) << 31) return "steps must lie in 0 .. 2^31";
  if (a.kind == INT8_DENSE) return a.steps ? "a dense weight has no steps" : nullptr;
  if (a.kind == INT8_BITMAP) return nullptr;
  if (a.lines < 1 || a.lines > 254) return "lines must lie in 1 .. 254";
  if (a.kind == INT8_LINES) return a.block < 16 || a.block > 256 || a.block % 16 ? "a block must have 16, 32 .. 256 rows" : nullptr;
  if ((a.tall != 1 && a.tall != 4) || (a.wide != 1 && a.wide != 4)) return "tall and wide must be 1 or 4";
  if (a.stride % a.wide || a.window % a.wide) return "windows must begin and end where blocks do";
  return a.stride < 1 || a.stride > a.window || a.window > WINDOW ? "0 < stride <= window <= 64 must hold" : nullptr;
}

const char* int8_weight(const uint8_t* data, int64_t size, Int8Weight* to) {
  int64_t head[16];
  if (size < int64_t(sizeof head)) return "a weight has 128 bytes at least";
  if ((uintptr_t)data % 4) return "a weight must begin at a multiple of 4 bytes";
  memcpy(head, data, sizeof head);
  if (head[0] != HEAD) return "these bytes are no int8 weight, or one of another version";
  Int8Weight& a = *to;
  a = {};
  a.kind = head[1], a.rows = head[2], a.cols = head[3], a.lines = head[4], a.stride = head[5], a.tall = head[6];
  a.wide = head[7], a.window = head[8], a.steps = head[9], a.block = head[5];
  if (const char* wrong = wrong_sizes(a)) return wrong;
  if (head[10] < 0 || head[10] > (a.kind == INT8_DENSE)) return "masked must be 0, or 1 for a dense weight";
  const uint32_t bits = uint32_t(head[11]);
  memcpy(&a.x_scale, &bits, 4), a.x_zero = int32_t(head[12]);
  const bool fixed = bits >= 0x00800000 && bits < 0x7F800000;  // a positive normal number
  if (head[11] != bits || (bits && !fixed) || head[12] < 0 || head[12] > 254) return "the range of activations must have a positive normal scale, and a zero in 0 .. 254";
  const bool dense = a.kind == INT8_DENSE, lines = a.kind == INT8_LINES, bitmap = a.kind == INT8_BITMAP;
  const int64_t parts = dense ? 0 : a.parts(), per_step = lines ? 16 : WINDOW * a.tall;
  const int64_t crd = dense ? head[10] * a.rows * ((a.cols + 7) / 8) : bitmap ? a.units() * a.quads() * 8 : a.steps * a.places();
  const int64_t values = dense ? a.units() * GROUP * a.quads() * 4 : bitmap ? a.steps + WINDOW : a.steps * per_step;
  const int64_t line = lines ? parts * 4 : bitmap ? 0 : a.steps;
  const int64_t sizes[6] = {a.rows * 4, a.rows * 4, dense ? 0 : (parts + 1) * 4, crd, line, values};
  const uint8_t *at[6], *end = data + sizeof head;
  int64_t all = sizeof head;
  for (int i = 0; i < 6; i++) at[i] = end, end += padded(sizes[i]), all += padded(sizes[i]);
  if (all != size) return "its arrays must fill the weight";
  a.scale = (const float*)at[0], a.sum = (const int32_t*)at[1], a.pos = (const int32_t*)at[2], a.crd = at[3];
  (lines ? a.row : a.line) = at[4], a.values = (const int8_t*)at[5];
  if (!dense && (a.pos[0] != 0 || a.pos[parts] != a.steps)) return "pos must run from 0 to the number of steps";
  return nullptr;
}

}  // namespace gossamer
