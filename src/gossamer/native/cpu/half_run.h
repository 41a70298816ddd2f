// A product with bfloat16 activations: widened before it, and its result rounded after it. Many tokens go 64 at a time, so
// that what is widened is read, and what is written is rounded, while the caches have it; few go together, and the
// threads share their rows. The split depends on the number of tokens alone, so threads change no bit.
#pragma once
#include <vector>

#include "rows.h"
#include "torch_abi.h"

namespace gossamer_torch {

// A matrix or vector argument as float32: itself, or widened.
class Floats {
 public:
  const float* data;
  int64_t lead;
  Floats(const Tensor& t, int64_t cols, const char* name) {
    if (t.dtype() != BFLOAT16) {
      data = t.matrix(cols, name, &lead, own_);
      return;
    }
    int64_t ld;
    std::vector<gossamer::Bf16> copy;
    const gossamer::Bf16* from = t.matrix(cols, name, &ld, copy, BFLOAT16);
    const int64_t tokens = t.tokens();
    own_.resize(tokens * cols);
    for (int64_t i = 0; i < tokens; i++) gossamer::kernels().widen(from + i * ld, own_.data() + i * cols, cols);
    data = own_.data(), lead = cols;
  }
  Floats(const Tensor& t, const char* name, int64_t length) : lead(0) {  // or null
    if (!t) {
      data = nullptr;
      return;
    }
    if (t.dtype() != BFLOAT16) {
      data = t.line<const float>(FLOAT32, length, name);
      return;
    }
    own_.resize(length);
    gossamer::kernels().widen(t.line<const gossamer::Bf16>(BFLOAT16, length, name), own_.data(), length);
    data = own_.data();
  }

 private:
  std::vector<float> own_;
};

// float32 results as a bfloat16 tensor.
inline Value rounded(Tensor& from, int64_t dims, const int64_t* sizes) {
  int64_t count = 1;
  for (int64_t d = 0; d < dims; d++) count *= sizes[d];
  Tensor out(reinterpret_cast<Value>(empty(dims, sizes, BFLOAT16)));
  gossamer::kernels().narrow(from.data<float>(FLOAT32, "out"), out.data<gossamer::Bf16>(BFLOAT16, "out"), count);
  return out.release();
}

// P is a Product or a BlockProduct without x and out, K the table with its functions.
template <class P, class K> struct HalfJob {
  static constexpr int64_t CHUNK = 64, TOGETHER = 256;
  P p;
  const K* kernels;
  const gossamer::Bf16* x;
  int64_t ldx, cols;
  gossamer::Bf16* out;
  int64_t rows;

  struct Part {
    P p;
    const K* kernels;
    static void run(int64_t begin, int64_t end, void* self) {
      auto* part = static_cast<Part*>(self);
      part->kernels->product(part->p, begin, end);
    }
  };

  // Tokens [first, first + count); `work` decides whether threads share their rows.
  void some(int64_t first, int64_t count, int64_t work) const {
    const gossamer::Kernels& all = gossamer::kernels();
    static thread_local std::vector<float> own;
    if (int64_t(own.size()) < count * (cols + rows)) own.resize(count * (cols + rows));
    Part part{p, kernels};
    float* wide = own.data();
    for (int64_t t = 0; t < count; t++) all.widen(x + (first + t) * ldx, wide + t * cols, cols);
    part.p.x = wide, part.p.ldx = cols, part.p.tokens = count, part.p.out = wide + count * cols, part.p.ldo = rows;
    parallel(kernels->items(part.p), work, &part);
    all.narrow(part.p.out, out + first * rows, count * rows);
  }

  static void run(int64_t begin, int64_t end, void* self) {
    const auto* job = static_cast<HalfJob*>(self);
    for (int64_t c = begin; c < end; c++)
      job->some(c * CHUNK, job->p.tokens - c * CHUNK < CHUNK ? job->p.tokens - c * CHUNK : CHUNK, 0);
  }

  Value all(const Tensor& like, int64_t work) {
    Tensor made(reinterpret_cast<Value>(empty_like(like, rows, BFLOAT16)));
    out = made.data<gossamer::Bf16>(BFLOAT16, "out");
    if (p.tokens && rows) every(work);
    return made.release();
  }

 private:
  void every(int64_t work) {
    if (p.tokens <= TOGETHER) return some(0, p.tokens, work);
    parallel((p.tokens + CHUNK - 1) / CHUNK, work, this);
  }
};

}  // namespace gossamer_torch
