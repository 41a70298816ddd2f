// Convolutions with int8 weights as a torch operator. The schema is declared in Python (gossamer/kernels/int8/operators.py).
//
//   int8_conv2d(weight, x, bias?, add?, out_scale?, out_zero?, rows, kernel_h, kernel_w, stride_h, stride_w, dilation_h,
//               dilation_w, left, right, top, bottom, activation) -> out
//
// x is [images, channels, height, width], contiguous or in torch's channels_last format, and out has the order of x; the
// columns of the weight are (i, j, channel) of the kernel. Images are rounded to eight bits first, each with a range of its
// own unless the weight has one. x may be bytes in the range of the weight; out is bytes if its range is given. add is
// float32 and of the shape of out, and both are channels_last.
#include <atomic>
#include <cstdint>
#include <vector>

#include "int8.h"
#include "int8_geometry.h"
#include "int8_range.h"
#include "rows.h"
#include "torch_abi.h"

namespace {

using namespace gossamer;
using namespace gossamer_torch;

Int8Dimension dimension(int64_t size, Value kernel, Value stride, Value dilation, Value before, Value after) {
  const Int8Dimension d{size, int64_t(kernel), int64_t(stride), int64_t(dilation), int64_t(before), int64_t(after)};
  const auto within = [](int64_t v, int64_t least) { return v >= least && v < int64_t(1) << 31; };  // so that no product of two overflows
  require(within(d.kernel, 1) && within(d.stride, 1) && within(d.dilation, 1) && within(d.before, 0) && within(d.after, 0),
          "kernel, stride and dilation must be positive, the padding not negative, and all less than 2**31");
  require(d.out() > 0, "the kernel must not be larger than the padded input");
  return d;
}

struct ExtremesJob {
  const Int8Images& p;
  static void run(int64_t begin, int64_t end, void* self) { int8_kernels().image_extremes(static_cast<ExtremesJob*>(self)->p, begin, end); }
};

struct RowsJob {
  const Int8Images& p;
  static void run(int64_t begin, int64_t end, void* self) { int8_kernels().image_rows(static_cast<RowsJob*>(self)->p, begin, end); }
};

struct PlanesJob {
  const Int8Images& p;
  static void run(int64_t begin, int64_t end, void* self) { int8_kernels().image_planes(static_cast<PlanesJob*>(self)->p, begin, end); }
};

struct ProductJob {
  Int8Product p{};
  std::atomic<bool> good{true};
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ProductJob*>(self);
    if (!int8_kernels().product(job->p, begin, end)) job->good = false;
  }
};

void quantise(const Int8Images& p, int64_t rows) {
  const int64_t values = p.images * p.height * p.width * p.channels;
  if (p.x_type == NUMBER_UINT8) {
    for (int64_t i = 0; i < p.images; i++) p.scale[i] = *p.x_scale, p.zero[i] = *p.x_zero;
  } else {
    ExtremesJob see{p};
    parallel(p.images * p.height, values / 4, &see);
    int8_kernels().image_ranges(p);
  }
  RowsJob write{p};
  parallel(rows, p.planes ? 0 : values, &write);
  PlanesJob fill{p};
  if (p.planes) parallel(p.images * ((p.channels + 15) / 16), values, &fill);
}

bool channels_last(const Tensor& x) {
  constexpr int ORDER[4] = {1, 3, 2, 0};
  int64_t expected = 1;
  for (int64_t d = 0; d < 4; d++)
    if (!x.size(d)) return true;
  for (int d : ORDER) {
    if (x.size(d) > 1 && x.stride(d) != expected) return false;
    expected *= x.size(d);
  }
  return true;
}

// [images, rows, height, width], contiguous or channels last.
Handle empty_images(int64_t images, int64_t rows, int64_t height, int64_t width, int32_t dtype, bool planes) {
  const int64_t sizes[4] = {images, rows, height, width};
  if (planes) return empty(4, sizes, dtype);
  const int64_t strides[4] = {rows * height * width, 1, rows * width, rows};
  Handle out;
  check(aoti_torch_empty_strided(4, sizes, strides, dtype, 0, -1, &out));
  return out;
}

void int8_conv2d(Value* stack, uint64_t, uint64_t) {
  Tensor weight(stack[0]), x(stack[1]), bias(optional(stack[2])), add(optional(stack[3]));
  Tensor out_scale(optional(stack[4])), out_zero(optional(stack[5]));
  ProductJob job;
  Int8Product& p = job.p;
  const int64_t size = weight.dim() == 1 ? weight.size(0) : -1;
  if (const char* wrong = int8_weight(weight.line<const uint8_t>(UINT8, size, "weight must be uint8 of one dimension"), size, &p.a))
    require(false, wrong);
  require(p.a.rows == int64_t(stack[6]), "rows must be those of the weight");
  require(x.dim() == 4 && (x.contiguous() || channels_last(x)), "x must be [images, channels, height, width], contiguous or channels_last");
  const Value* s = stack + 7;  // kernel, stride and dilation, each down and across; left, right, top, bottom
  const Int8Convolution c(x.size(0), x.size(1), dimension(x.size(2), s[0], s[2], s[4], s[8], s[9]),
                          dimension(x.size(3), s[1], s[3], s[5], s[6], s[7]));
  require(c.channels * c.down.kernel * c.across.kernel == p.a.cols, "cols must be kernel_h * kernel_w * channels");
  p.activation = int64_t(s[10]);
  require(p.activation >= NONE && p.activation <= SILU, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
  if (bias) p.bias = bias.line<const float>(FLOAT32, p.a.rows, "bias must be float32 [rows]");

  const int32_t type = x.dtype();
  const int64_t x_type = type == UINT8 ? NUMBER_UINT8 : type == BFLOAT16 ? NUMBER_BF16 : NUMBER_FLOAT;
  require(type == UINT8 || type == BFLOAT16 || type == FLOAT32, "x must be float32, bfloat16 or uint8");
  require(type != UINT8 || (p.a.x_scale && channels_last(x)), "x of uint8 must be channels_last, and the weight must have its range");
  Int8Images m = c.quantise(x.data<const void>(type, "x"), x_type, !channels_last(x));
  const int64_t bytes = c.bytes(), lines = m.images * m.height;
  Tensor q(reinterpret_cast<Value>(empty(1, &bytes, UINT8)));
  std::vector<int32_t> high(lines), zero(m.images);
  std::vector<uint32_t> low(lines);
  std::vector<float> scale(m.images);
  if (p.a.x_scale) m.x_scale = &p.a.x_scale, m.x_zero = &p.a.x_zero;
  m.high = high.data(), m.low = low.data(), m.scale = scale.data(), m.zero = zero.data(), m.q = q.data<uint8_t>(UINT8, "q");
  quantise(m, c.rows());

  const Int8Patches patches = c.patches(m.q);
  const bool planes = x.contiguous() && type != UINT8 && !out_scale && !add;
  require(!out_scale == !out_zero, "scale and zero of out come together");
  p.out_type = out_scale ? NUMBER_UINT8 : x_type == NUMBER_BF16 ? NUMBER_BF16 : NUMBER_FLOAT;
  take_out_range(p, out_scale, out_zero);
  const int32_t out_type = p.out_type == NUMBER_UINT8 ? UINT8 : p.out_type == NUMBER_BF16 ? BFLOAT16 : FLOAT32;
  Tensor out(reinterpret_cast<Value>(empty_images(m.images, p.a.rows, c.down.out(), c.across.out(), out_type, planes)));
  p.patches = &patches, p.tokens = m.images * c.pixels(), p.x_scale = scale.data(), p.x_zero = zero.data();
  p.out = out.data<void>(out_type, "out"), p.ldo = p.a.rows, p.plane = planes ? c.pixels() : 0;
  if (add) {
    const bool same = add.dim() == 4 && add.size(0) == m.images && add.size(1) == p.a.rows && add.size(2) == c.down.out() && add.size(3) == c.across.out();
    require(same && channels_last(add), "add must be of the shape of the output, and channels_last");
    p.add = add.data<const float>(FLOAT32, "add must be float32");
  }
  if (p.tokens && p.a.rows) parallel(int8_kernels().items(p), size * p.tokens / 8, &job);
  require(job.good, "an output is not finite, and uint8 has no number for it");
  stack[0] = out.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "int8_conv2d", int8_conv2d, TORCH_2_11));
  }
} registered;

}  // namespace
