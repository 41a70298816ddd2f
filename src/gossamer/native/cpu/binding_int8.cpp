// The int8 kernels as torch operators, through torch's stable C functions (torch_abi.h). Schemas and fake functions are
// declared in Python (gossamer/kernels/int8/operators.py); here are the functions for CPU tensors.
//
//   int8_linear(weight, x, bias?, rows, activation) -> out, of the type of x
//   int8_linear_ranged(weight, x, bias?, x_scale?, x_zero?, out_scale?, out_zero?, rows, activation, out) -> out
//   int8_quantize(x, scale?, zero?) -> (q, scale, zero)
#include <atomic>
#include <cstdint>
#include <vector>

#include "direct.h"
#include "int8.h"
#include "int8_range.h"
#include "rows.h"
#include "torch_abi.h"

namespace {

using namespace gossamer;
using namespace gossamer_torch;

constexpr int32_t TYPE_OF[3] = {FLOAT32, BFLOAT16, UINT8};  // of a Number

struct Copy {  // of activations with strides that the kernels don't take
  std::vector<float> floats;
  std::vector<Bf16> halves;
  std::vector<uint8_t> bytes;
};

// The activations, and their scale and zero if given.
template <class P> void take_tokens(P& p, Copy& own, const Tensor& x, const Tensor& scale, const Tensor& zero, int64_t cols) {
  const int32_t type = x.dtype();
  p.x_type = type == UINT8 ? NUMBER_UINT8 : type == BFLOAT16 ? NUMBER_BF16 : NUMBER_FLOAT;
  const char* wanted = "x must be float32, bfloat16 or uint8 [..., cols]";
  if (p.x_type == NUMBER_UINT8) p.x = x.matrix(cols, wanted, &p.ldx, own.bytes, UINT8);
  else if (p.x_type == NUMBER_BF16) p.x = x.matrix(cols, wanted, &p.ldx, own.halves, BFLOAT16);
  else p.x = x.matrix(cols, wanted, &p.ldx, own.floats);
  p.tokens = x.tokens();
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
    require(p.x_type == NUMBER_UINT8 || (p.x_scale[t] >= LEAST && p.x_scale[t] < 3e38f), "scale of x must be a positive normal number");
  }
}

struct ProductJob {
  Int8Product p;
  const Int8Kernels* kernels;
  Copy own{};
  std::atomic<bool> good{true};

  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ProductJob*>(self);
    if (!job->kernels->product(job->p, begin, end)) job->good = false;
  }

  // The weight and the number of its rows, which the operator was told too: a trace has no bytes to look at.
  void take_weight(const Tensor& weight, Value rows) {
    const int64_t size = weight.dim() == 1 ? weight.size(0) : -1;
    const uint8_t* data = weight.line<const uint8_t>(UINT8, size, "weight must be uint8 of one dimension");
    require(int64_t(rows) >= 0, "rows must not be negative");
    if (const char* wrong = int8_weight(data, size, &p.a)) require(false, wrong);
    require(p.a.rows == int64_t(rows), "rows must be those of the weight");
  }

  // With one set of tokens each thread reads and rounds all activations, which come from another core. Less than 20
  // multiply-adds for each of them take no longer than that: 16 tokens and six MLPs 768-3072-768 at 90 % in eager mode take
  // 0.46 ms by two threads and 0.36 by one; but MiniLM at 75 %, compiled, 0.26 and 0.33.
  void share(int64_t work) {
    const int64_t items = kernels->items(p);
    if (items == p.a.units() && work < 20 * p.tokens * p.a.cols) run(0, items, this);
    else parallel(items, work, this);
  }

  Value product(const Tensor& weight, const Tensor& x, const Tensor& bias, Value activation) {
    if (bias) p.bias = bias.line<const float>(FLOAT32, p.a.rows, "bias must be float32 [rows]");
    p.activation = int64_t(activation), p.ldo = p.a.rows;
    require(p.activation >= NONE && p.activation <= SILU, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
    Tensor out(reinterpret_cast<Value>(empty_like(x, p.a.rows, TYPE_OF[p.out_type])));
    p.out = out.data<char>(TYPE_OF[p.out_type], "out");
    if (p.tokens && p.a.rows) share(weight.size(0) * p.tokens / 8);
    require(good, "an output is not finite, and uint8 has no number for it");
    return out.release();
  }
};

Value linear(const Tensor& weight, const Tensor& x, const Tensor& bias, Value rows, Value activation) {
  const Tensor none(0);
  ProductJob job{{}, &int8_kernels()};
  job.take_weight(weight, rows);
  take_tokens(job.p, job.own, x, none, none, job.p.a.cols);
  if (job.p.a.x_scale) job.p.x_scale = &job.p.a.x_scale, job.p.x_zero = &job.p.a.x_zero;
  job.p.out_type = job.p.x_type;
  return job.product(weight, x, bias, activation);
}

void int8_linear(Value* stack, uint64_t, uint64_t) {
  const Tensor weight(stack[0]), x(stack[1]), bias(optional(stack[2]));
  stack[0] = linear(weight, x, bias, stack[3], stack[4]);
}

void int8_linear_ranged(Value* stack, uint64_t, uint64_t) {
  Tensor weight(stack[0]), x(stack[1]), bias(optional(stack[2])), x_scale(optional(stack[3])), x_zero(optional(stack[4]));
  Tensor out_scale(optional(stack[5])), out_zero(optional(stack[6]));
  ProductJob job{{}, &int8_kernels()};
  Int8Product& p = job.p;
  job.take_weight(weight, stack[7]);
  take_tokens(p, job.own, x, x_scale, x_zero, p.a.cols);
  p.out_type = int64_t(stack[9]);
  require(p.out_type >= NUMBER_FLOAT && p.out_type <= NUMBER_UINT8, "out must be 0 float32, 1 bfloat16 or 2 uint8");
  take_out_range(p, out_scale, out_zero);
  stack[0] = job.product(weight, x, bias, stack[8]);
}

struct QuantizeJob {
  Int8Tokens p;
  Copy own;
  static void run(int64_t begin, int64_t end, void* self) { int8_kernels().quantize(static_cast<QuantizeJob*>(self)->p, begin, end); }
};

void int8_quantize(Value* stack, uint64_t, uint64_t) {
  Tensor x(stack[0]), scale(optional(stack[1])), zero(optional(stack[2]));
  QuantizeJob job{};
  Int8Tokens& p = job.p;
  require(x.dim() == 2, "x must be a matrix");
  p.cols = x.size(1);
  take_tokens(p, job.own, x, scale, zero, p.cols);
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
    check(torch_library_impl(library, "int8_linear_ranged", int8_linear_ranged, TORCH_2_11));
    check(torch_library_impl(library, "int8_quantize", int8_quantize, TORCH_2_11));
  }
} registered;

}  // namespace

Value gossamer_torch::direct_int8(const Tensor& weight, const Tensor& x, const Tensor& bias, const int64_t* rest) {
  return linear(weight, x, bias, rest[0], rest[1]);
}

extern "C" __attribute__((visibility("default"))) const char* gossamer_int8_isa() { return gossamer::int8_kernels().name; }
