"""Workspaces in C: where a row of a sparse result is gathered, by coordinate, and comes out in order.

A workspace for which there is no memory has ``failed`` set: the chunk is given up, and the call raises MemoryError.
"""

NO_WORKSPACE = """\
typedef struct { int failed; } ws_t;
#define ws_free(w) (void)(w)
"""

MEMORY = """\
void *malloc(unsigned long); void *calloc(unsigned long, unsigned long); void free(void *);
"""

# Values by coordinate, and a byte for each that says if it is used, and one for each 64: draining them is in order,
# without a sort. Bytes are set without being read before, so that no sum waits for another. 64 of them make a word
# of bits, and the bits are turned into a list first, four at a time whether they are there or not: a branch for each
# would be a guess for each.
_LISTED = """\
#if __AVX512F__ && __SIZEOF_POINTER__ == 8 && REAL_IS_FLOAT && __GNUC__
#define LANES16 1
typedef int i16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float f16 __attribute__((vector_size(64), aligned(4), may_alias));
static inline long ws_word16(float *val, long base, unsigned long bits, int *crd, float *out) {
  long n = 0;
  for (int t = 0; t < 64; t += 16) {
    const unsigned short used = bits >> t;
    const int count = __builtin_popcount(used);
    const unsigned short first = (1u << count) - 1;
    const i16 at = (i16){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + (int)(base + t);
    const f16 v = *(const f16 *)(val + t);
    __builtin_ia32_storedqusi512_mask(crd + n, __builtin_ia32_compresssi512_mask(at, (i16){0}, used), first);
    __builtin_ia32_storeups512_mask(out + n, __builtin_ia32_compresssf512_mask(v, (f16){0}, used), first);
    *(f16 *)(val + t) = (f16){0};
    n += count;
  }
  return n;
}
#else
#define LANES16 0
#define ws_word16(val, base, bits, crd, out) 0
#endif
static inline long ws_word(int *list, long n, long base, unsigned long bits) {
  const long count = __builtin_popcountl(bits);
  for (int t = 0; t < 4; ++t) list[n + t] = base + __builtin_ctzl(bits | 1ul << 63), bits &= bits - 1;
  for (long t = 4; t < count; ++t) list[n + t] = base + __builtin_ctzl(bits), bits &= bits - 1;
  return n + count;
}
static inline long ws_list(ws_t *w) {
  long n = 0;
  EACH_WORD(w, b, n = ws_word(w->list, n, b * 64, ws_bits(w, b));)
  return n;
}
static inline long ws_count(ws_t *w) {
  long n = 0;
  EACH_WORD(w, b, n += __builtin_popcountl(ws_bits(w, b));)
  return n;
}
static inline long ws_flush(ws_t *w, long count, int *crd, real *out) {
  for (long t = 0; t < count; ++t) {
    const int i = w->list[t];
    crd[t] = i, out[t] = w->val[i], w->val[i] = 0;
  }
  return count;
}
/* read what is used, at coordinates that are known: nothing was marked */
static inline void ws_read(ws_t *w, const int *crd, real *out, long count) {
  for (long t = 0; t < count; ++t) out[t] = w->val[crd[t]], w->val[crd[t]] = 0;
}
/* append all that is used, and leave the workspace empty; a full word goes by sixteen lanes, where there are any */
static inline long ws_append(ws_t *w, int *crd, real *out) {
  long n = 0, listed = 0;
  EACH_WORD(w, b,
    const unsigned long bits = ws_bits(w, b);
    if (LANES16 && __builtin_popcountl(bits) > 5) {
      n += ws_flush(w, listed, crd + n, out + n), listed = 0;
      n += ws_word16(w->val + b * 64, b * 64, bits, crd + n, out + n);
    } else listed = ws_word(w->list, listed, b * 64, bits);
  )
  return n + ws_flush(w, listed, crd + n, out + n);
}
#define DRAIN(w, coord, value, ...) \\
  for (long t_ = 0, stop_ = ws_list(w); t_ < stop_; ++t_) { \\
    const long coord = (w)->list[t_]; \\
    const real value = (w)->val[coord]; \\
    (w)->val[coord] = 0; \\
    __VA_ARGS__ \\
  }
"""

DENSE_WORKSPACE = (
    MEMORY
    + """\
typedef struct { real *val; _Bool *used, *seen; int *list; long size; int failed, any; } ws_t;
static void ws_open(ws_t *w, long size) {
  if (w->val) return;
  w->size = size, w->val = calloc(size + 64, sizeof(real)), w->used = calloc(size + 64, 1);
  w->seen = calloc(size / 64 + 8, 1), w->list = malloc((size + 64) * sizeof(int));
  w->failed = !w->val || !w->used || !w->seen || !w->list;
}
static void ws_free(ws_t *w) { free(w->val), free(w->used), free(w->seen), free(w->list); }
static inline void ws_mark(ws_t *w, long i) { w->used[i] = 1, w->seen[i >> 6] = 1, w->any = 1; }
static inline void ws_add(ws_t *w, long i, real v) {
  w->val[i] += v;
  ws_mark(w, i);
}
/* which of 64 coordinates are used; they are not any more */
static inline unsigned long ws_bits(ws_t *w, long b) {
  unsigned long bits = 0;
#if __AVX512BW__ && __GNUC__
  typedef char c64 __attribute__((vector_size(64), aligned(1), may_alias));
  c64 *at = (c64 *)(w->used + b * 64);
  bits = __builtin_ia32_ptestmb512(*at, *at, -1);
  *at = (c64){0};
#else
  for (long t = 0; t < 8; ++t) {
    unsigned long bytes;
    __builtin_memcpy(&bytes, w->used + b * 64 + t * 8, 8);
    bits |= bytes * 0x0102040810204080ul >> 56 << t * 8;
  }
  __builtin_memset(w->used + b * 64, 0, 64);
#endif
  return bits;
}
#define EACH_WORD(w, b, ...) \\
  if ((w)->any) for (long s_ = (w)->any = 0, words_ = (w)->size >> 6; s_ <= words_; s_ += 8) { \\
    unsigned long bytes_; \\
    __builtin_memcpy(&bytes_, (w)->seen + s_, 8); \\
    if (!bytes_) continue; \\
    __builtin_memset((w)->seen + s_, 0, 8); \\
    for (; bytes_; bytes_ &= bytes_ - 1) { const long b = s_ + (__builtin_ctzl(bytes_) >> 3); __VA_ARGS__ } \\
  }
"""
    + _LISTED
)

# With a second level of bits over the first, so that a few entries among millions are found at once.
WIDE_WORKSPACE = (
    MEMORY
    + """\
typedef struct { real *val; unsigned long *bits, *top; int *list; long size; int failed; } ws_t;
static void ws_open(ws_t *w, long size) {
  if (w->val) return;
  w->size = size, w->val = calloc(size + 64, sizeof(real));
  w->bits = calloc(size / 64 + 1, 8), w->top = calloc(size / 4096 + 1, 8), w->list = malloc((size + 64) * sizeof(int));
  w->failed = !w->val || !w->bits || !w->top || !w->list;
}
static void ws_free(ws_t *w) { free(w->val), free(w->bits), free(w->top), free(w->list); }
static inline unsigned long ws_bits(ws_t *w, long b) {
  const unsigned long bits = w->bits[b];
  w->bits[b] = 0;
  return bits;
}
static inline void ws_mark(ws_t *w, long i) {
  w->bits[i >> 6] |= 1ul << (i & 63);
  w->top[i >> 12] |= 1ul << (i >> 6 & 63);
}
static inline void ws_add(ws_t *w, long i, real v) {
  w->val[i] += v;
  ws_mark(w, i);
}
#define EACH_WORD(w, b, ...) \\
  for (long t_ = 0; t_ <= (w)->size >> 12; ++t_) { \\
    for (unsigned long top_ = (w)->top[t_]; top_; top_ &= top_ - 1) { \\
      const long b = t_ * 64 + __builtin_ctzl(top_); \\
      __VA_ARGS__ \\
    } \\
    (w)->top[t_] = 0; \\
  }
"""
    + _LISTED
)

# Coordinates in a table of open addresses that grows; drained in order after a sort of those in use.
HASH_WORKSPACE = (
    MEMORY
    + """\
typedef struct { long *key; real *val; long *list; long cap, count; int failed; } ws_t;
static void ws_free(ws_t *w) { free(w->key), free(w->val), free(w->list); }
static void ws_fresh(ws_t *w, long cap) {
  w->cap = cap, w->count = 0;
  w->key = malloc(cap * 8), w->val = malloc(cap * sizeof(real)), w->list = malloc(cap * 8);
  w->failed = !w->key || !w->val || !w->list;
  for (long s = 0; s < cap && !w->failed; ++s) w->key[s] = -1;
}
static void ws_open(ws_t *w, long size) { (void)size; if (!w->key) ws_fresh(w, 1024); }
static inline long ws_slot(const ws_t *w, long i) {
  long s = (long)((unsigned long)i * 0x9E3779B97F4A7C15ul >> 20) & (w->cap - 1);
  while (w->key[s] != -1 && w->key[s] != i) s = (s + 1) & (w->cap - 1);
  return s;
}
static void ws_add(ws_t *w, long i, real v) {
  long s = ws_slot(w, i);
  if (w->key[s] == i) { w->val[s] += v; return; }
  if (2 * w->count >= w->cap) {
    ws_t old = *w;
    ws_fresh(w, 2 * old.cap);
    if (w->failed) { ws_free(w), *w = old, w->failed = 1; return; } /* without this entry: the result is given up */
    for (long t = 0; t < old.count; ++t) {
      const long from = ws_slot(&old, old.list[t]), to = ws_slot(w, old.list[t]);
      w->key[to] = old.list[t], w->val[to] = old.val[from], w->list[w->count++] = old.list[t];
    }
    ws_free(&old);
    s = ws_slot(w, i);
  }
  w->key[s] = i, w->val[s] = v, w->list[w->count++] = i;
}
static void ws_sort(long *x, long n) { /* heap sort: no worst case, no memory */
  for (long start = n / 2, end = n; end > 1;) {
    long v;
    if (start) v = x[--start]; else v = x[--end], x[end] = x[0];
    long root = start, child;
    while ((child = 2 * root + 1) < end) {
      if (child + 1 < end && x[child + 1] > x[child]) ++child;
      if (x[child] <= v) break;
      x[root] = x[child], root = child;
    }
    x[root] = v;
  }
}
static void ws_clear(ws_t *w) {
  for (long t = 0; t < w->count; ++t) w->list[t] = ws_slot(w, w->list[t]);
  for (long t = 0; t < w->count; ++t) w->key[w->list[t]] = -1;
  w->count = 0;
}
static long ws_append(ws_t *w, int *crd, real *out) {
  const long n = w->count;
  ws_sort(w->list, n);
  for (long t = 0; t < n; ++t) crd[t] = w->list[t], out[t] = w->val[ws_slot(w, w->list[t])];
  ws_clear(w);
  return n;
}
#define ws_mark(w, i) ws_add(w, i, 0)
static long ws_count(ws_t *w) {
  const long n = w->count;
  ws_clear(w);
  return n;
}
#define DRAIN(w, coord, value, ...) \\
  ws_sort((w)->list, (w)->count); \\
  for (long t_ = 0; t_ < (w)->count; ++t_) { \\
    const long coord = (w)->list[t_]; \\
    const long s_ = ws_slot(w, coord); \\
    const real value = (w)->val[s_]; \\
    __VA_ARGS__ \\
  } \\
  ws_clear(w);
"""
)

# Coordinates without values, a bit each. For nests that one thread runs.
BITS_WORKSPACE = (
    MEMORY
    + """\
typedef struct { unsigned long *bits; long size; } ws_t;
static int ws_open(ws_t *w, long size) { w->size = size, w->bits = calloc(size / 64 + 1, 8); return !w->bits; }
static void ws_free(ws_t *w) { free(w->bits); }
static inline void ws_mark(ws_t *w, long i) { w->bits[i >> 6] |= 1ul << (i & 63); }
#define DRAIN(w, coord, value, ...) \\
  for (long b_ = 0; b_ * 64 < (w)->size; ++b_) { \\
    for (unsigned long bits_ = (w)->bits[b_]; bits_; bits_ &= bits_ - 1) { \\
      const long coord = b_ * 64 + __builtin_ctzl(bits_); \\
      __VA_ARGS__ \\
    } \\
    (w)->bits[b_] = 0; \\
  }
"""
)

SOURCES = {"dense": DENSE_WORKSPACE, "wide": WIDE_WORKSPACE, "hash": HASH_WORKSPACE, None: NO_WORKSPACE}
