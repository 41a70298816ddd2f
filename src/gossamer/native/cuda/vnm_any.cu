// y = act(W x + bias) for packed V:N:M, on any GPU, for any v, any number of tokens and any strides: right first.
//
// One thread has one row and TOKENS tokens, so each value and column is read once for TOKENS multiplications. Work:
// 2 rows groups tokens multiply-adds, each with a load of x from the first or second cache, which bounds it; the tensor
// cores' kernels (vnm_many.cu, vnm_few.cu) are for speed.
#include "vnm.cuh"

#define TOKENS 4

struct Strided {
  i64 token, feature;
};

struct Problem {
  const Element* values;
  const u32* meta;
  const u8* cols;
  const Element* x;
  Element* y;
  const Element* bias;
  i64 rows, width, m, v, tokens, steps;
  Strided at, to;  // from one element of x, or y, to the next
  i64 activation;
};

extern "C" __global__ void __launch_bounds__(128) vnm_any(const __grid_constant__ Problem p) {
  const Vnm w{p.values, p.meta, p.cols, p.rows, p.width, p.steps, p.v, p.m};
  const i64 row = i64(blockIdx.x) * 128 + threadIdx.x;
  after_the_kernel_before();
  if (row >= w.rows) return;
  for (i64 start = i64(blockIdx.y) * TOKENS; start < p.tokens; start += i64(gridDim.y) * TOKENS) {
    const int count = int(p.tokens - start < TOKENS ? p.tokens - start : TOKENS);
    float sum[TOKENS] = {};
    const i64 groups = (w.width + w.m - 1) / w.m;
    for (i64 group = 0; group < groups; group++) {
      i64 first, second;
      w.columns(row, group, &first, &second);
      const i64 pair = w.pair(row, group) * 2;
      const float a = widen(w.values[pair]), b = widen(w.values[pair + 1]);
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        if (t >= count) break;
        const Element* token = p.x + (start + t) * p.at.token;
        if (first < w.width) sum[t] = fmaf(a, widen(token[first * p.at.feature]), sum[t]);
        if (second < w.width) sum[t] = fmaf(b, widen(token[second * p.at.feature]), sum[t]);
      }
    }
    const float shift = p.bias ? widen(p.bias[row]) : 0.f;
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
      if (t < count) p.y[(start + t) * p.to.token + row * p.to.feature] = narrow(activated(sum[t] + shift, int(p.activation)));
  }
}
