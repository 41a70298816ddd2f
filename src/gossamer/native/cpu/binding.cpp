// The kernels of packed rows as torch operators, through torch's stable C functions (torch_abi.h). Schemas, fake functions
// and gradients are declared in Python (gossamer/kernels/rows/operators.py); here are the functions for CPU tensors.
//
//   rows_linear(row?, pos?, crd, values, x, bias?, rows, cols, block, tile, window, per, activation) -> out
//   rows_register(row?, pos?, crd, rows, cols, block, tile, window, per) -> number
//   rows_registered(values, x, bias?, number, rows, activation) -> out, as rows_linear
//   rows_int8(row?, pos?, crd, values, scale, x, bias?, rows, ..., activation) -> out, of int8 values times scale[row]
//   rows_sample(row?, pos?, crd, left, right, rows, cols, block, tile, window, per) -> grad
//   rows_gather(values, places) -> values[places], 0 where the place is -1
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "direct.h"
#include "half_run.h"
#include "rows_of.h"

namespace gossamer_torch {

namespace {
struct Identity {  // rows in their own order, for the regular patterns
  int32_t row[MOST_ROWS];
  Identity() {
    for (int32_t i = 0; i < MOST_ROWS; i++) row[i] = i;
  }
} identity;
}  // namespace

gossamer::Rows rows_of(const Tensor& row, const Tensor& pos, const Tensor& crd, const Value* sizes, int64_t lanes_of) {
  constexpr int64_t lanes = gossamer::LANES;
  gossamer::Rows a{};
  a.rows = int64_t(sizes[0]), a.cols = int64_t(sizes[1]), a.block = int64_t(sizes[2]), a.tile = int64_t(sizes[3]);
  a.window = int64_t(sizes[4]), a.per = int64_t(sizes[5]);
  require(a.rows >= 0 && a.cols >= 0, "rows and cols must not be negative");
  require(a.block > 0 && a.block % lanes == 0 && a.block <= MOST_ROWS, "block must be a multiple of 16 up to 4096");
  require(a.per >= 0 && (a.per ? a.window > 0 && a.window < 255 : a.window == 0 || a.window == 15),
          "window must lie in 1 .. 254; without per it is 0, or 15 where columns are told by steps");
  const int64_t bytes = crd.dim() == 1 ? crd.size(0) : -1;
  a.crd = crd.line<const uint8_t>(UINT8, bytes, "crd must be uint8 of one dimension");
  if (a.per) {
    a.tile = gossamer::regular_tile(lanes_of, a.cols, a.window, a.per);
    a.row = identity.row;
    a.count();
    require(bytes << a.nibbles() == a.blocks() * a.groups() * lanes * a.each(),
            "crd must be [groups, steps, 16] for a window above 15, [groups, steps / 2, 16] with an even number of steps else");
    return a;
  }
  require(a.tile > 0 && a.tile < 255, "tile must lie in 1 .. 254");
  a.count();
  require(row && pos, "row and pos are needed where there is no window");
  const int64_t groups = a.blocks() * a.tiles() * a.groups();
  a.row = row.line<const int32_t>(INT32, groups * lanes, "row must be int32 [blocks * tiles * block]");
  a.pos = pos.line<const int32_t>(INT32, groups + 1, "pos must be int32 [blocks * tiles * block / 16 + 1]");
  require(a.pos[0] == 0 && a.pos[groups] * lanes == bytes << a.nibbles(), "pos must run from 0 to the number of steps");
  return a;
}

}  // namespace gossamer_torch

namespace {

using namespace gossamer_torch;

struct ProductJob {
  gossamer::Product p;
  const gossamer::Kernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<ProductJob*>(self);
    job->kernels->product(job->p, begin, end);
  }
};

struct SampleJob {
  gossamer::Sample p;
  const gossamer::Kernels* kernels;
  static void run(int64_t begin, int64_t end, void* self) {
    auto* job = static_cast<SampleJob*>(self);
    job->kernels->sample(job->p, begin, end);
  }
};

// What all products have: the rows p.a, tokens, bias, activation; returns out.
Value product(ProductJob& job, const Tensor& crd, const Tensor& x, const Tensor& bias, Value activation) {
  gossamer::Product& p = job.p;
  p.activation = int64_t(activation);
  require(p.activation >= 0 && p.activation <= 3, "activation must be 0 none, 1 relu, 2 gelu or 3 silu");
  const char* wanted = "x must be float32 [..., cols] of up to 8 dimensions; bfloat16 if values are";
  const Floats shift(bias, "bias must be float32 [rows]; bfloat16 if values are", p.a.rows);
  p.bias = shift.data, p.wide = gossamer::wide_for(x.tokens());
  if (p.a.halves) {
    HalfJob<gossamer::Product, gossamer::Kernels> half{p, job.kernels, nullptr, 0, p.a.cols, nullptr, p.a.rows};
    std::vector<gossamer::Bf16> copy;
    half.x = x.matrix(p.a.cols, wanted, &half.ldx, copy, BFLOAT16);
    half.p.tokens = x.tokens(), half.p.x_halves = true;
    return half.all(x, places(p.a, crd) * half.p.tokens);
  }
  std::vector<float> copy;
  p.x = x.matrix(p.a.cols, wanted, &p.ldx, copy);
  p.tokens = x.tokens(), p.ldo = p.a.rows;
  Tensor out(reinterpret_cast<Value>(empty_like(x, p.a.rows)));
  p.out = out.data<float>(FLOAT32, "out");
  const int64_t work = places(p.a, crd) * p.tokens;
  const bool slow = p.tokens == 1 && !p.a.per;  // a place takes 2.5 times as long as one of a regular pattern
  if (p.tokens && p.a.rows) parallel(job.kernels->items(p), slow ? work * 5 / 2 : work, &job);
  return out.release();
}

Value linear(const gossamer::Rows& a, const Tensor& crd, const Tensor& values, const Tensor& x, const Tensor& bias,
             Value activation) {
  ProductJob job{{}, &gossamer::kernels()};
  job.p.a = a;
  const char* wanted = "values must be float32 or bfloat16, as many as crd has columns";
  const int64_t count = places(job.p.a, crd);
  if (values.dtype() == BFLOAT16) job.p.a.halves = values.line<const gossamer::Bf16>(BFLOAT16, count, wanted);
  else job.p.a.values = values.line<const float>(FLOAT32, count, wanted);
  return product(job, crd, x, bias, activation);
}

void rows_linear(Value* stack, uint64_t, uint64_t) {
  const Tensor row(optional(stack[0])), pos(optional(stack[1])), crd(stack[2]);
  const Tensor values(stack[3]), x(stack[4]), bias(optional(stack[5]));
  stack[0] = linear(rows_of(row, pos, crd, stack + 6), crd, values, x, bias, stack[12]);
}

// Rows that are multiplied again and again, by a number: an argument of an operator costs up to 0.2 us.
// Neither shared_ptr nor unordered_map: with them the wheel would need glibc 2.32 and the libstdc++ of gcc 11.
struct Registered {
  const Tensor row, pos, crd;
  Value sizes[6];
  std::atomic<int64_t> users;  // the table, and each call that is running
};
struct Leave {
  void operator()(Registered* rows) const {
    if (--rows->users == 0) delete rows;
  }
};
using Use = std::unique_ptr<Registered, Leave>;
std::mutex table_lock;
std::map<int64_t, Use> table;
int64_t registered_so_far = 0;

void rows_register(Value* stack, uint64_t, uint64_t) {
  Use made(new Registered{Tensor(optional(stack[0])), Tensor(optional(stack[1])), Tensor(stack[2]), {}, {1}});
  memcpy(made->sizes, stack + 3, sizeof made->sizes);
  rows_of(made->row, made->pos, made->crd, made->sizes);  // which checks them
  const std::lock_guard<std::mutex> lock(table_lock);
  table[++registered_so_far] = std::move(made);
  stack[0] = Value(registered_so_far);
}

Value by_number(Value number, Value rows, const Tensor& values, const Tensor& x, const Tensor& bias, Value activation) {
  Use found;
  {
    const std::lock_guard<std::mutex> lock(table_lock);
    const auto at = table.find(int64_t(number));
    require(at != table.end() && at->second->sizes[0] == rows, "no rows have this number");
    ++at->second->users;
    found.reset(at->second.get());
  }
  // checked again: their memory may be another one by now
  const gossamer::Rows a = rows_of(found->row, found->pos, found->crd, found->sizes);
  return linear(a, found->crd, values, x, bias, activation);
}

void rows_registered(Value* stack, uint64_t, uint64_t) {
  const Tensor values(stack[0]), x(stack[1]), bias(optional(stack[2]));
  stack[0] = by_number(stack[3], stack[4], values, x, bias, stack[5]);
}

void rows_int8(Value* stack, uint64_t, uint64_t) {
  Tensor row(optional(stack[0])), pos(optional(stack[1])), crd(stack[2]);
  Tensor values(stack[3]), scale(stack[4]), x(stack[5]), bias(optional(stack[6]));
  ProductJob job{{}, &gossamer::kernels()};
  job.p.a = rows_of(row, pos, crd, stack + 7);
  job.p.a.bytes = values.line<const int8_t>(INT8, places(job.p.a, crd), "values must be int8, as many as crd has columns");
  job.p.a.scale = scale.line<const float>(FLOAT32, job.p.a.rows, "scale must be float32 [rows]");
  stack[0] = product(job, crd, x, bias, stack[13]);
}

void rows_sample(Value* stack, uint64_t, uint64_t) {
  Tensor row(optional(stack[0])), pos(optional(stack[1])), crd(stack[2]), left(stack[3]), right(stack[4]);
  SampleJob job{{}, &gossamer::kernels()};
  gossamer::Sample& p = job.p;
  p.a = rows_of(row, pos, crd, stack + 5, 0);  // short tiles: 64 tokens of one are 34 KB
  const Floats l(left, p.a.rows, "left must be float32 or bfloat16 [..., rows] of up to 8 dimensions");
  const Floats r(right, p.a.cols, "right must be float32 or bfloat16 [..., cols] of up to 8 dimensions");
  p.left = l.data, p.ldl = l.lead, p.right = r.data, p.ldr = r.lead;
  p.tokens = left.tokens();
  require(right.tokens() == p.tokens, "left and right must have as many tokens");
  const int64_t size = places(p.a, crd);
  Tensor out(reinterpret_cast<Value>(empty(1, &size)));
  p.grad = out.data<float>(FLOAT32, "out");
  if (size) parallel(p.a.blocks(), size * p.tokens, &job);
  stack[0] = left.dtype() == BFLOAT16 ? rounded(out, 1, &size) : out.release();
}

// 16 or 32 bits of each value. An index that is out of range, -1 above all, is a value of 0.
template <class V> struct GatherJob {
  const V* values;
  const int32_t* places;
  uint32_t count;
  V* out;
  static void run(int64_t begin, int64_t end, void* self) {
    const auto job = *static_cast<GatherJob*>(self);
    for (int64_t i = begin; i < end; i++) {
      const uint32_t place = uint32_t(job.places[i]);
      const V value = job.values[place < job.count ? place : 0];
      job.out[i] = place < job.count ? value : V(0);
    }
  }
};

void rows_gather(Value* stack, uint64_t, uint64_t) {
  Tensor values(stack[0]), places(stack[1]);
  const int64_t count = values.dim() == 1 ? values.size(0) : -1, size = places.dim() == 1 ? places.size(0) : -1;
  const int32_t dtype = values.dtype() == BFLOAT16 ? BFLOAT16 : FLOAT32;
  const char* wanted = "values must be float32 or bfloat16 of one dimension, one at least and fewer than 2^31";
  require(count > 0 && count < (int64_t(1) << 31), wanted);
  const int32_t* from = places.line<const int32_t>(INT32, size, "places must be int32 of one dimension");
  Tensor out(reinterpret_cast<Value>(empty(1, &size, dtype)));
  if (dtype == BFLOAT16) {
    GatherJob<uint16_t> job{values.line<const uint16_t>(dtype, count, wanted), from, uint32_t(count), out.data<uint16_t>(dtype, "out")};
    parallel(size, size, &job);
  } else {
    GatherJob<float> job{values.line<const float>(dtype, count, wanted), from, uint32_t(count), out.data<float>(dtype, "out")};
    parallel(size, size, &job);
  }
  stack[0] = out.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "rows_linear", rows_linear, TORCH_2_11));
    check(torch_library_impl(library, "rows_forward", rows_linear, TORCH_2_11));  // the same, below autograd
    check(torch_library_impl(library, "rows_register", rows_register, TORCH_2_11));
    check(torch_library_impl(library, "rows_registered", rows_registered, TORCH_2_11));
    check(torch_library_impl(library, "rows_int8", rows_int8, TORCH_2_11));
    check(torch_library_impl(library, "rows_sample", rows_sample, TORCH_2_11));
    check(torch_library_impl(library, "rows_sample_forward", rows_sample, TORCH_2_11));
    check(torch_library_impl(library, "rows_gather", rows_gather, TORCH_2_11));
  }
} registered;

}  // namespace

Value gossamer_torch::direct_rows(const Tensor& values, const Tensor& x, const Tensor& bias, const int64_t* rest) {
  require(!bias || bias.dtype() == values.dtype(), "bias must be of the type of the values");
  return by_number(rest[0], rest[1], values, x, bias, rest[2]);
}

extern "C" __attribute__((visibility("default"))) void gossamer_forget(int64_t number) {
  const std::lock_guard<std::mutex> lock(table_lock);
  table.erase(number);
}

extern "C" __attribute__((visibility("default"))) const char* gossamer_isa() { return gossamer::kernels().name; }
