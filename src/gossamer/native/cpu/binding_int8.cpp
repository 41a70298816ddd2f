// The int8 kernels as torch operators, through torch's stable C functions (torch_abi.h). Schemas and fake functions are
// declared in Python (gossamer/kernels/int8/operators.py); here are the functions for CPU tensors.
//
//   int8_linear(values, pos?, crd?, line?, scale, sum, x, x_scale?, x_zero?, bias?, out_scale?, out_zero?,
//               kind, rows, cols, lines, stride, tall, window, activation, out) -> out
//   int8_quantize(x, scale?, zero?) -> (q, scale, zero)
#include <atomic>
#include <cstdint>

#include "int8.h"
#include "rows.h"
#include "torch_abi.h"

namespace {

using namespace gossamer;
using namespace gossamer_torch;

constexpr int32_t TYPE_OF[3] = {FLOAT32, BFLOAT16, UINT8};  // of a Number

// Whatever depends on sizes alone is checked here; what the arrays hold is checked where they are made.
Int8Weight weight_of(const Tensor& values, const Tensor& pos, const Tensor& crd, const Tensor& line, const Tensor& scale,
                     const Tensor& sum, const Value* sizes) {
  Int8Weight a{};
  a.kind = int64_t(sizes[0]), a.rows = int64_t(sizes[1]), a.cols = int64_t(sizes[2]), a.lines = int64_t(sizes[3]);
  a.stride = int64_t(sizes[4]), a.tall = int64_t(sizes[5]), a.window = int64_t(sizes[6]);
  require(a.kind >= INT8_DENSE && a.kind <= INT8_LINES, "kind must be 0 dense, 1 lookup or 2 lines");
  require(a.rows >= 0 && a.cols >= 0 && a.cols <= MOST_COLS, "rows must not be negative, cols must lie in 0 .. 65536");
  a.scale = scale.line<const float>(FLOAT32, a.rows, "scale must be float32 [rows]");
  a.sum = sum.line<const int32_t>(INT32, a.rows, "sum must be int32 [rows]");
  const int64_t count = values.dim() == 1 ? values.size(0) : -1;
  a.values = values.line<const int8_t>(INT8, count, "values must be int8 of one dimension");
  if (a.kind == INT8_DENSE) {
    require(count == a.units() * GROUP * a.quads() * 4, "values must be int8 [groups, cols / 4, 16, 4]");
    return a;
  }
  require(pos && crd && line, "pos, crd and line are needed unless the weight is dense");
  require(a.lines > 0 && a.lines < 256, "lines must lie in 1 .. 255");
  if (a.kind == INT8_LOOKUP) {
    require(a.tall == 1 || a.tall == 4, "tall must be 1 or 4");
    require(a.window > 0 && a.window <= WINDOW && a.stride > 0 && a.stride <= a.window, "stride and window: 0 < stride <= window <= 64");
  } else {
    a.block = a.stride;
    require(a.block > 0 && a.block <= 256 && a.block % GROUP == 0, "stride, here the rows of a block, must be a multiple of 16 up to 256");
  }
  const int64_t parts = a.units() * a.tiles() * (a.kind == INT8_LINES ? a.block / 4 : 1);
  a.pos = pos.line<const int32_t>(INT32, parts + 1, "pos must be int32, one more than there are groups or units in all tiles");
  const int64_t steps = a.pos[parts], each = a.kind == INT8_LINES ? 4 : WINDOW;
  require(a.pos[0] == 0 && steps >= 0, "pos must run from 0 to the number of steps");
  a.crd = crd.line<const uint8_t>(UINT8, steps * each, "crd must be uint8, 64 (lookup) or 4 (lines) a step");
  require(count == steps * each * (a.kind == INT8_LINES ? 4 : a.tall), "values must be int8 [steps, tall, 16, 4] or [steps, 4, 4]");
  const char* wanted = "line must be uint8 [steps] (lookup) or [units * 4] (lines)";
  const uint8_t* lines = line.line<const uint8_t>(UINT8, a.kind == INT8_LINES ? parts * 4 : steps, wanted);
  (a.kind == INT8_LINES ? a.row : a.line) = lines;
  return a;
}

// The type of activations, and their scale and zero, if given.
template <class P> void take_tokens(P& p, const Tensor& x, const Tensor& scale, const Tensor& zero, int64_t cols) {
  const int32_t type = x.dtype();
  p.x_type = type == UINT8 ? NUMBER_UINT8 : type == BFLOAT16 ? NUMBER_BF16 : NUMBER_FLOAT;
  const char* wanted = "x must be float32, bfloat16 or uint8 [tokens, cols] with contiguous rows";
  p.x = x.matrix<char>(cols, wanted, &p.ldx, TYPE_OF[p.x_type]);
  p.tokens = x.size(0);
  require(!scale == !zero, "scale and zero of x come together");
  require(scale || p.x_type != NUMBER_UINT8, "x of uint8 needs its scale and zero");
  if (!scale) return;
  const int64_t each = scale.dim() == 1 ? scale.size(0) : -1;
  require(each == 1 || (each == p.tokens && p.x_type == NUMBER_UINT8), "scale of x must be float32 [1], or [tokens] for x of uint8");
  p.x_scale = scale.line<const float>(FLOAT32, each, "scale of x must be float32 [1] or [tokens]");
  p.x_zero = zero.line<const int32_t>(INT32, each, "zero of x must be int32, as many as there are scales");
  p.x_each = each > 1;
  for (int64_t t = 0; t < each; t++) {
    require(p.x_zero[t] >= 0 && p.x_zero[t] <= 254, "zero of x must lie in 0 .. 254");
    require(p.x_type == NUMBER_UINT8 || p.x_scale[t] >= 1.17549435e-38f, "scale of x must be a positive normal number");
  }
}

struct ProductJob {
  Int8Product p;
  const Int8Kernels* kernels;
  std::atomic<bool> good{true};
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ProductJob*>(self);
    if (!job->kernels->product(job->p, begin, end)) job->good = false;
  }
};

void int8_linear(Value* stack, uint64_t, uint64_t) {
  Tensor values(stack[0]), pos(optional(stack[1])), crd(optional(stack[2])), line(optional(stack[3]));
  Tensor scale(stack[4]), sum(stack[5]), x(stack[6]), x_scale(optional(stack[7])), x_zero(optional(stack[8]));
  Tensor bias(optional(stack[9])), out_scale(optional(stack[10])), out_zero(optional(stack[11]));
  ProductJob job{{}, &int8_kernels()};
  Int8Product& p = job.p;
  p.a = weight_of(values, pos, crd, line, scale, sum, stack + 12);
  take_tokens(p, x, x_scale, x_zero, p.a.cols);
  if (bias) p.bias = bias.line<const float>(FLOAT32, p.a.rows, "bias must be float32 [rows]");
  p.activation = int64_t(stack[19]), p.out_type = int64_t(stack[20]), p.ldo = p.a.rows;
  require(p.activation >= NONE && p.activation <= SILU, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
  require(p.out_type >= NUMBER_FLOAT && p.out_type <= NUMBER_UINT8, "out must be 0 float32, 1 bfloat16 or 2 uint8");
  if (p.out_type == NUMBER_UINT8) {
    require(out_scale && out_zero, "out of uint8 needs its scale and zero");
    p.out_scale = *out_scale.line<const float>(FLOAT32, 1, "scale of out must be float32 [1]");
    p.out_zero = *out_zero.line<const int32_t>(INT32, 1, "zero of out must be int32 [1]");
    require(p.out_scale >= 1.17549435e-38f && p.out_zero >= 0 && p.out_zero <= 254,
            "scale of out must be a positive normal number, its zero must lie in 0 .. 254");
  }
  const int64_t sizes[2] = {p.tokens, p.a.rows};
  Tensor out(reinterpret_cast<Value>(empty(2, sizes, TYPE_OF[p.out_type])));
  p.out = out.data<char>(TYPE_OF[p.out_type], "out");
  if (p.tokens && p.a.rows) parallel(job.kernels->items(p), values.size(0) * p.tokens / 4, &job);
  require(job.good, "an output is not finite, and uint8 has no number for it");
  stack[0] = out.release();
}

struct QuantizeJob {
  Int8Tokens p;
  static void run(int64_t begin, int64_t end, void* self) { int8_kernels().quantize(static_cast<QuantizeJob*>(self)->p, begin, end); }
};

void int8_quantize(Value* stack, uint64_t, uint64_t) {
  Tensor x(stack[0]), scale(optional(stack[1])), zero(optional(stack[2]));
  QuantizeJob job{};
  Int8Tokens& p = job.p;
  p.cols = x.dim() == 2 ? x.size(1) : 0;
  take_tokens(p, x, scale, zero, p.cols);
  require(p.x_type != NUMBER_UINT8, "x must be float32 or bfloat16");
  const int64_t sizes[2] = {p.tokens, p.cols};
  Tensor q(reinterpret_cast<Value>(empty(2, sizes, UINT8)));
  Tensor scales(reinterpret_cast<Value>(empty(1, sizes))), zeros(reinterpret_cast<Value>(empty(1, sizes, INT32)));
  p.q = q.data<uint8_t>(UINT8, "q"), p.scale = scales.data<float>(FLOAT32, "scale"), p.zero = zeros.data<int32_t>(INT32, "zero");
  if (p.tokens) parallel(p.tokens, p.tokens * p.cols, &job);
  stack[0] = q.release(), stack[1] = scales.release(), stack[2] = zeros.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "int8_linear", int8_linear, TORCH_2_11));
    check(torch_library_impl(library, "int8_quantize", int8_quantize, TORCH_2_11));
  }
} registered;

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* gossamer_int8_isa() { return gossamer::int8_kernels().name; }
extern "C" __attribute__((visibility("default"))) int64_t gossamer_int8_window() { return gossamer::int8_kernels().window; }
