// The kernels of compressed rows of blocks as torch operators; their other half is gossamer/ops/block_kernels.py.
//
//   blocks_linear(pos, crd, values, x, bias?, rows, cols, activation) -> out
//   blocks_sample(pos, crd, left, right, rows, cols, height, width) -> grad
#include <cstdint>
#include <cstring>

#include "half_run.h"
#include "rows.h"
#include "torch_abi.h"

namespace {

using namespace gossamer_torch;
using gossamer::Blocks;

Blocks blocks_of(const Tensor& pos, const Tensor& crd, Value rows, Value cols, int64_t height, int64_t width) {
  Blocks a{};
  a.rows = int64_t(rows), a.cols = int64_t(cols), a.height = height, a.width = width;
  require(a.rows >= 0 && a.cols >= 0 && height > 0 && width > 0, "sizes must not be negative, nor a block empty");
  const int64_t down = a.down(), count = crd.dim() == 1 ? crd.size(0) : -1;
  a.pos = pos.line<const int32_t>(INT32, down + 1, "pos must be int32 [rows of blocks + 1]");
  a.crd = crd.line<const int32_t>(INT32, count, "crd must be int32 of one dimension");
  require(a.pos[0] == 0 && a.pos[down] == count, "pos must run from 0 to the number of blocks");
  return a;
}

struct ProductJob {
  gossamer::BlockProduct p;
  const gossamer::BlockKernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ProductJob*>(self);
    job->kernels->product(job->p, begin, end);
  }
};

struct SampleJob {
  gossamer::BlockSample p;
  const gossamer::BlockKernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<SampleJob*>(self);
    job->kernels->sample(job->p, begin, end);
  }
};

void blocks_linear(Value* stack, uint64_t, uint64_t) {
  Tensor pos(stack[0]), crd(stack[1]), values(stack[2]), x(stack[3]), bias(optional(stack[4]));
  ProductJob job{{}, &gossamer::kernels().blocks};
  gossamer::BlockProduct& p = job.p;
  const char* wanted = "values must be float32 or bfloat16 [blocks, height, width]";
  require(values.dim() == 3 && values.contiguous(), wanted);
  p.a = blocks_of(pos, crd, stack[5], stack[6], values.size(1), values.size(2));
  require(values.size(0) == crd.size(0), "values must have as many blocks as crd");
  if (values.dtype() == BFLOAT16) p.a.halves = values.data<const gossamer::Bf16>(BFLOAT16, wanted);
  else p.a.values = values.data<const float>(FLOAT32, wanted);
  p.activation = int64_t(stack[7]);
  require(p.activation >= 0 && p.activation <= 3, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
  const Floats shift(bias, "bias must be float32 [rows]; bfloat16 if values are", p.a.rows);
  p.bias = shift.data;
  const int64_t work = values.size(0) * p.a.height * p.a.width * x.tokens();
  wanted = "x must be float32 [..., cols] of up to 8 dimensions; bfloat16 if values are";
  if (p.a.halves) {
    HalfJob<gossamer::BlockProduct, gossamer::BlockKernels> half{p, job.kernels, nullptr, 0, p.a.cols, nullptr, p.a.rows};
    std::vector<gossamer::Bf16> copy;
    half.x = x.matrix(p.a.cols, wanted, &half.ldx, copy, BFLOAT16);
    half.p.tokens = x.tokens();
    stack[0] = half.all(x, work);
    return;
  }
  std::vector<float> copy;
  p.x = x.matrix(p.a.cols, wanted, &p.ldx, copy);
  p.tokens = x.tokens(), p.ldo = p.a.rows;
  Tensor out(reinterpret_cast<Value>(empty_like(x, p.a.rows)));
  p.out = out.data<float>(FLOAT32, "out");
  if (p.tokens && p.a.rows) parallel(job.kernels->items(p), work, &job);
  stack[0] = out.release();
}

void blocks_sample(Value* stack, uint64_t, uint64_t) {
  Tensor pos(stack[0]), crd(stack[1]), left(stack[2]), right(stack[3]);
  SampleJob job{{}, &gossamer::kernels().blocks};
  gossamer::BlockSample& p = job.p;
  p.a = blocks_of(pos, crd, stack[4], stack[5], int64_t(stack[6]), int64_t(stack[7]));
  const Floats l(left, p.a.rows, "left must be float32 or bfloat16 [..., rows] of up to 8 dimensions");
  const Floats r(right, p.a.cols, "right must be float32 or bfloat16 [..., cols] of up to 8 dimensions");
  p.left = l.data, p.ldl = l.lead, p.right = r.data, p.ldr = r.lead;
  p.tokens = left.tokens();
  require(right.tokens() == p.tokens, "left and right must have as many tokens");
  const int64_t sizes[3] = {crd.size(0), p.a.height, p.a.width}, count = sizes[0] * sizes[1] * sizes[2];
  Tensor out(reinterpret_cast<Value>(empty(3, sizes)));
  p.grad = out.data<float>(FLOAT32, "out");
  memset(p.grad, 0, count * sizeof(float));
  if (count) parallel(p.a.down(), count * p.tokens, &job);
  stack[0] = left.dtype() == BFLOAT16 ? rounded(out, 3, sizes) : out.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "blocks_linear", blocks_linear, TORCH_2_11));
    check(torch_library_impl(library, "blocks_forward", blocks_linear, TORCH_2_11));  // the same, below autograd
    check(torch_library_impl(library, "blocks_sample", blocks_sample, TORCH_2_11));
    check(torch_library_impl(library, "blocks_sample_forward", blocks_sample, TORCH_2_11));
  }
} registered;

}  // namespace
