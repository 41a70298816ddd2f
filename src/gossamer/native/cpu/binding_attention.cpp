// Attention as a torch operator, through torch's stable C functions (torch_abi.h). Its schema and its fake function are
// declared in Python (gossamer/kernels/attention).
//
//   attention(q, k, v, mask?, scale) -> out[batch, heads, queries, depth], in the order [batch, queries, heads, depth]
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "rows.h"
#include "torch_abi.h"

namespace {

using namespace gossamer;
using namespace gossamer_torch;

constexpr int32_t BOOL = 11;  // torch's number

Heads heads_of(const Tensor& x, const char* what) {
  require(x.dim() == 4 && (x.size(3) <= 1 || x.stride(3) == 1), what);
  return {x.data<const float>(FLOAT32, what), x.stride(0), x.stride(1), x.stride(2)};
}

struct Job {
  Attention p;
  static void run(int64_t begin, int64_t end, void* self) { kernels().attention(static_cast<Job*>(self)->p, begin, end); }
};

void attention(Value* stack, uint64_t, uint64_t) {
  const Tensor q(stack[0]), k(stack[1]), v(stack[2]), mask(optional(stack[3]));
  double scale;
  memcpy(&scale, &stack[4], sizeof scale);
  Job job{};
  Attention& p = job.p;
  p.q = heads_of(q, "q must be float32 [batch, heads, queries, depth] with consecutive columns");
  p.k = heads_of(k, "k must be float32 [batch, heads, keys, depth] with consecutive columns");
  p.v = heads_of(v, "v must be float32 [batch, heads, keys, depth] with consecutive columns");
  p.batch = q.size(0), p.heads = q.size(1), p.queries = q.size(2), p.keys = k.size(2), p.depth = q.size(3), p.scale = float(scale);
  for (int i : {0, 1, 3}) require(k.size(i) == q.size(i) && v.size(i) == q.size(i), "q, k and v must have the same batch, heads and depth");
  require(v.size(2) == p.keys, "k and v must have the same number of tokens");
  if (mask) {
    const char* what = "mask must be bool [1 or batch, 1, 1 or queries, 1 or keys]";
    require(mask.dim() == 4 && mask.size(1) == 1, what);
    const int64_t sizes[3] = {p.batch, p.queries, p.keys}, dims[3] = {0, 2, 3};
    int64_t strides[3];
    for (int i = 0; i < 3; i++) {
      require(mask.size(dims[i]) == sizes[i] || mask.size(dims[i]) == 1, what);
      strides[i] = mask.size(dims[i]) == 1 ? 0 : mask.stride(dims[i]);
    }
    p.mask = mask.data<const uint8_t>(BOOL, what), p.mask_batch = strides[0], p.mask_query = strides[1], p.mask_key = strides[2];
  }
  const int64_t sizes[4] = {p.batch, p.heads, p.queries, p.depth}, token = p.heads * p.depth;
  const int64_t strides[4] = {p.queries * token, p.depth, token, 1};
  Handle made;
  check(aoti_torch_empty_strided(4, sizes, strides, FLOAT32, 0, -1, &made));
  Tensor out(reinterpret_cast<Value>(made));
  p.out = out.data<float>(FLOAT32, "out");
  const int64_t items = p.batch * p.heads * p.queries * p.depth > 0 ? kernels().attention_items(p) : 0;
  if (items) parallel(items, 2 * p.batch * p.heads * p.queries * p.keys * p.depth, &job);
  stack[0] = out.release();
}

struct Register {
  Register() {
    TorchLibrary* library;
    check(aoti_torch_library_init_impl("gossamer", "CPU", __FILE__, __LINE__, &library));
    check(torch_library_impl(library, "attention", attention, TORCH_2_11));
  }
} registered;

}  // namespace
