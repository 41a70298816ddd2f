// Convolutions with packed rows as a torch operator. The schema is declared in Python (gossamer/kernels/rows/operators.py).
//
//   rows_conv2d(row?, pos?, crd, values, x, bias?, rows, cols, block, tile, window, per, kernel_h, kernel_w, stride_h,
//               stride_w, dilation_h, dilation_w, left, right, top, bottom, activation) -> out
//
// x is [images, channels, height, width], contiguous; the columns of the matrix are (channel, i, j) of the kernel.
#include <cstdint>
#include <vector>

#include "dimension.h"
#include "half_run.h"
#include "rows_of.h"

namespace {

using namespace gossamer_torch;

struct ConvJob {
  gossamer::Product p;
  const gossamer::Kernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ConvJob*>(self);
    job->kernels->product(job->p, begin, end);
  }
};

struct PadJob {
  gossamer::Padding p;
  const gossamer::Kernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<PadJob*>(self);
    job->kernels->pad(job->p, begin, end);
  }
};

gossamer::Dimension dimension(int64_t size, Value kernel, Value stride, Value dilation, Value before, Value after) {
  require(int64_t(kernel) > 0 && int64_t(stride) > 0 && int64_t(dilation) > 0 && int64_t(before) >= 0 && int64_t(after) >= 0,
          "kernel, stride and dilation must be positive, and the padding not negative");
  return gossamer::Dimension(size, int64_t(kernel), int64_t(stride), int64_t(dilation), int64_t(before), int64_t(after));
}

// float32 of a tensor, and the tensor that has it if that is another one.
const float* widened(const Tensor& x, int64_t count, Tensor& own) {
  const char* wanted = "x must be float32; bfloat16 if values are";
  if (own) {
    float* to = own.data<float>(FLOAT32, "copy");
    gossamer::kernels().widen(x.data<const gossamer::Bf16>(BFLOAT16, wanted), to, count);
    return to;
  }
  return x.data<const float>(FLOAT32, wanted);
}

Handle line_of(int64_t count) { return empty(1, &count); }

void rows_conv2d(Value* stack, uint64_t, uint64_t) {
  Tensor row(optional(stack[0])), pos(optional(stack[1])), crd(stack[2]);
  Tensor values(stack[3]), x(stack[4]), bias(optional(stack[5]));
  ConvJob job{{}, &gossamer::kernels()};
  gossamer::Product& p = job.p;
  p.a = rows_of(row, pos, crd, stack + 6);
  const bool half = values.dtype() == BFLOAT16;
  const char* wanted = "values must be float32 or bfloat16, as many as crd has columns";
  if (half) p.a.halves = values.line<const gossamer::Bf16>(BFLOAT16, places(p.a, crd), wanted);
  else p.a.values = values.line<const float>(FLOAT32, places(p.a, crd), wanted);
  require(x.dim() == 4 && x.contiguous(), "x must be [images, channels, height, width], contiguous");
  const int64_t images = x.size(0), channels = x.size(1);
  const Value* s = stack + 12;  // kernel, stride and dilation, each down and across; left, right, top, bottom
  const gossamer::Dimension down = dimension(x.size(2), s[0], s[2], s[4], s[8], s[9]);
  const gossamer::Dimension across = dimension(x.size(3), s[1], s[3], s[5], s[6], s[7]);
  require(down.out > 0 && across.out > 0, "the kernel must not be larger than the padded input");
  require(channels * down.kernel * across.kernel == p.a.cols, "cols must be channels * kernel_h * kernel_w");
  p.activation = int64_t(s[10]);
  require(p.activation >= 0 && p.activation <= 3, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
  const Floats shift(bias, "bias must be float32 [rows]; bfloat16 if values are", p.a.rows);
  p.bias = shift.data;

  const int64_t sizes[4] = {images, p.a.rows, down.out, across.out}, plane = x.size(2) * x.size(3);
  Tensor out(reinterpret_cast<Value>(empty(4, sizes)));
  p.out = out.data<float>(FLOAT32, "out");
  p.tokens = images * down.out * across.out, p.wide = gossamer::wide_for(p.tokens);

  const int64_t copied = down.places() * across.places();  // floats of a plane
  const bool copies = !down.as_it_is || !across.as_it_is;
  Tensor wide(half ? reinterpret_cast<Value>(line_of(images * channels * plane)) : 0);
  Tensor copy(copies ? reinterpret_cast<Value>(line_of(images * channels * copied)) : 0);
  const float* data = widened(x, images * channels * plane, wide);
  if (copies) {
    PadJob pad{{data, copy.data<float>(FLOAT32, "copy"), &down.axis, &across.axis}, job.kernels};
    parallel(images * channels, images * channels * copied, &pad);
    data = pad.p.to;
  }
  const std::vector<int64_t> columns = gossamer::columns_of(channels, down, across);
  const gossamer::Image image = gossamer::image_of(data, channels, down, across, columns);
  p.image = &image;
  if (p.tokens && p.a.rows) parallel(job.kernels->items(p), places(p.a, crd) * p.tokens, &job);
  stack[0] = half ? rounded(out, 4, sizes) : out.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "rows_conv2d", rows_conv2d, TORCH_2_11));
  }
} registered;

}  // namespace
