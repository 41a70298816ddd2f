// Products of tile_rows.h as a torch operator; its schema and fake function are gossamer/kernels/tiles/operators.py.
//
//   tiles_linear(pos, bits, values, x, bias?, rows, cols, activation) -> out
#include <cstdint>
#include <vector>

#include "half_run.h"
#include "tile_rows.h"
#include "torch_abi.h"

namespace {

using namespace gossamer;
using namespace gossamer_torch;

struct ProductJob {
  TileProduct p;
  const TileKernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ProductJob*>(self);
    job->kernels->product(job->p, begin, end);
  }
};

TileRows rows_of(const Tensor& pos, const Tensor& bits, const Tensor& values, Value rows, Value cols) {
  TileRows a{int64_t(rows), int64_t(cols), nullptr, nullptr, nullptr};
  require(a.rows >= 0 && a.cols >= 0, "rows and cols must not be negative");
  a.pos = pos.line<const int32_t>(INT32, a.groups() + 1, "pos must be int32 [rows / 16 + 1]");
  a.bits = bits.line<const uint32_t>(INT32, a.groups() * a.pairs(), "bits must be int32 [rows / 16 * cols / 2]");
  const int64_t count = values.dim() == 1 ? values.size(0) : -1;
  require(a.pos[0] == 0 && a.pos[a.groups()] == count, "pos must run from 0 to the number of values");
  a.values = values.line<const Bf16>(BFLOAT16, count, "values must be bfloat16 of one dimension");
  return a;
}

void tiles_linear(Value* stack, uint64_t, uint64_t) {
  const Tensor pos(stack[0]), bits(stack[1]), values(stack[2]), x(stack[3]), bias(optional(stack[4]));
  ProductJob job{{}, &tile_kernels()};
  TileProduct& p = job.p;
  p.a = rows_of(pos, bits, values, stack[5], stack[6]);
  std::vector<Bf16> copy;
  p.x = x.matrix(p.a.cols, "x must be bfloat16 [..., cols] of up to 8 dimensions", &p.ldx, copy, BFLOAT16);
  const Floats shift(bias, "bias must be float32 or bfloat16 [rows]", p.a.rows);
  p.bias = shift.data, p.tokens = x.tokens(), p.ldo = p.a.rows;
  p.activation = int64_t(stack[7]);
  require(p.activation >= NONE && p.activation <= SILU, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
  Tensor out(reinterpret_cast<Value>(empty_like(x, p.a.rows, BFLOAT16)));
  p.out = out.data<Bf16>(BFLOAT16, "out");
  // a line takes as long as eight multiply-adds of sixteen rows, and more with more tokens
  if (p.tokens && p.a.rows) parallel(job.kernels->items(p), bits.size(0) * (8 + p.tokens), &job);
  stack[0] = out.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "tiles_linear", tiles_linear, TORCH_2_11));
  }
} registered;

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* gossamer_tiles_isa() { return gossamer::tile_kernels().name; }
