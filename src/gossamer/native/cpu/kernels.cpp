// All kernels for one instruction set: compiled once for each, with its flags and its ISA (a namespace) and WIDTH.
// Only static functions and the one table leave here, so nothing built for a newer processor is ever called on an older.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "rows.h"

namespace gossamer {
float* scratch(size_t bytes);  // this thread's own memory, at least so large, 64-byte aligned
namespace ISA {

#include "vec.h"

#include "activation.h"

#include "panel.h"

#include "pixels.h"

#include "strip.h"

#include "half_strip.h"

#include "product.h"

#include "regular.h"

#include "token.h"

#include "windows.h"

#include "sample.h"

#include "convert.h"

#include "attend.h"

#include "block_lanes.h"

#include "block_product.h"

#include "block_sample.h"

constexpr int W = WIDTH;                // tokens in a vector
constexpr int R = WIDTH == 16 ? 4 : 2;  // rows at a time: R * T sums, and T + 1 more registers

// Tokens of a panel. On Zen 4 the loop alone was equally fast with 32 and 64, and 32 leave more of the caches. On Intel 64
// are faster (dispatch.cpp, wide_panels).
static int64_t panel_tokens(const Product& p) {
  if (by_half_dots(p)) return 2 * W;
  if (by_sixteen(W, p.a.window, p.a.per)) return W;
  return W == 16 && !p.wide ? 2 * W : 4 * W;
}

// W tokens of AVX-512 in sixteen rows fill sixteen registers, and go to out as they are; else sums of R rows.
template <int W, int T, int R>
static void these_tokens(const Product& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1, bool fresh) {
  constexpr int ROWS = W < 16 || T == 4 ? R : T == 1 ? 16 : 8;
  if (!p.a.per || !p.a.cols) multiply_tokens<W, T, R>(p, first, tokens, b0, b1, fresh);
  else if (p.a.bytes) multiply_regular<W, T, ROWS, int8_t>(p, first, tokens, b0, b1, fresh);
  else if (p.a.halves) multiply_regular<W, T, ROWS, Bf16>(p, first, tokens, b0, b1, fresh);
  else multiply_regular<W, T, ROWS, float>(p, first, tokens, b0, b1, fresh);
}

static void some_tokens(const Product& p, int64_t first, int64_t tokens, int64_t b0, int64_t b1, bool fresh) {
  if (W > 8 && tokens <= 8) return these_tokens<8, 1, 8>(p, first, tokens, b0, b1, fresh);
  if (tokens <= W) return these_tokens<W, 1, 4>(p, first, tokens, b0, b1, fresh);
  if (tokens <= 2 * W) return these_tokens<W, 2, 4>(p, first, tokens, b0, b1, fresh);
  return these_tokens<W, 4, R>(p, first, tokens, b0, b1, fresh);
}

static int64_t items(const Product& p) {
#if defined(__AVX512F__)
  if (by_windows(p)) return (p.tokens + SHARE - 1) / SHARE * quads(p.a);
#endif
  const int64_t n = panel_tokens(p);
  return p.tokens == 1 && !p.image ? p.a.blocks() : (p.tokens + n - 1) / n * p.a.blocks();
}

// Item i: token tile i / blocks, block of rows i % blocks. Neighbours share a packed panel.
static void product(const Product& p, int64_t begin, int64_t end) {
#if defined(__AVX512F__)
  if (by_windows(p) && p.a.halves) return multiply_windows<Bf16>(p, begin, end);
  if (by_windows(p)) return p.a.bytes ? multiply_windows<int8_t>(p, begin, end) : multiply_windows<float>(p, begin, end);
#endif
  if (p.tokens == 1 && !p.image) return multiply_token(p, begin, end);
  const int64_t blocks = p.a.blocks(), n = panel_tokens(p);
  for (bool fresh = true; begin < end; fresh = false) {
    const int64_t t = begin / blocks, b0 = begin % blocks;
    const int64_t b1 = end - t * blocks < blocks ? end - t * blocks : blocks;
    const int64_t tokens = p.tokens - t * n < n ? p.tokens - t * n : n;
    some_tokens(p, t * n, tokens, b0, b1, fresh);
    begin = t * blocks + b1;
  }
}

static void pad(const Padding& p, int64_t begin, int64_t end) { pad_planes<W>(p, begin, end); }

static void sample(const Sample& p, int64_t begin, int64_t end) {
  constexpr int64_t N = 4 * W;
  const Rows& a = p.a;
  const int64_t first_place = a.begin(begin), places = a.begin(end) - first_place;
  if (places && (!p.tokens || (a.per && a.each() != a.windows() * a.per)))  // else all of them are written
    memset(p.grad + first_place, 0, places * sizeof(float));
  bool finite = true;
  for (int64_t first = 0; first < p.tokens; first += N) {
    const int64_t tokens = p.tokens - first < N ? p.tokens - first : N;
    if (tokens <= W) finite &= sample_tokens<W, 1>(p, first, tokens, begin, end);
    else if (tokens <= 2 * W) finite &= sample_tokens<W, 2>(p, first, tokens, begin, end);
    else finite &= sample_tokens<W, 4>(p, first, tokens, begin, end);
  }
  for (int64_t b = begin; b < end && !finite; b++) clear_unused(p, b);
}

}  // namespace ISA

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
extern const Kernels JOIN(kernels_, ISA);
const Kernels JOIN(kernels_, ISA) = {TEXT(ISA), WIDTH, ISA::items, ISA::product, ISA::sample, ISA::pad,
                                   {ISA::block_items, ISA::block_product, ISA::block_sample}, ISA::attend_items, ISA::attend, ISA::widen, ISA::narrow};

}  // namespace gossamer
