// Attention in float32: what the kernels read. Pointers and sizes, no torch.
#pragma once
#include <cstdint>

namespace gossamer {

struct Heads {             // [batch, heads, tokens, depth] with a stride for each; the last one is 1
  const float* data;
  int64_t batch, head, token;
};

struct Attention {         // out = softmax(q @ k.T * scale, where the mask is not 0) @ v
  Heads q, k, v;
  float* out;              // [batch, queries, heads, depth], contiguous
  int64_t batch, heads, queries, keys, depth;
  float scale;
  const uint8_t* mask;     // [batch, queries, keys], for all heads; or null. A query without any key has the result 0
  int64_t mask_batch, mask_query, mask_key;  // strides
};

}  // namespace gossamer
