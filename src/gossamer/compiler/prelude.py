"""What every kernel's C begins with: work shared among torch's threads, search, workspaces. No header is included."""

SHARE = """\
typedef void (*task_t)(long, long, void *);
typedef int (*pool_t)(long, long, long, task_t, void *);
struct job { void *const *a; const long *z, *start; long *done; long units, chunks, next; };

/* the first unit of chunk c, so that chunks have about as much work; weights count the work before a unit */
static long cut(const struct job *j, const WEIGHT *weights, long c) {
  if (c >= j->chunks) return j->units;
  if (!weights) return j->units * c / j->chunks;
  const double share = (double)(weights[j->units] + j->units) * c / j->chunks;
  long low = 0, high = j->units;
  while (low < high) {
    const long middle = (low + high) / 2;
    if ((double)(weights[middle] + middle) < share) low = middle + 1; else high = middle;
  }
  return low;
}
"""

# Each thread takes the next chunk when it is done with one: what a slow core leaves, another does.
RUN = """\
static void work_{name}(long begin, long end, void *p) {{
  struct job *j = p;
  const WEIGHT *weights = {weights};
  ws_t ws = {{0}};
  (void)begin; (void)end;
  for (;;) {{
    const long c = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
    if (c >= j->chunks) break;
    {name}(j->a, j->z, cut(j, weights, c), cut(j, weights, c + 1), c, j->start, j->done, &ws);
  }}
  ws_free(&ws);
}}
long run_{name}(pool_t pool, long threads, long chunks, void *const *a, const long *z, const long *start, long *done) {{
  struct job j = {{a, z, start, done, units_{name}(a, z), chunks, 0}};
  if (j.chunks > j.units) j.chunks = j.units;
  if (threads < 2 || j.chunks < 2) work_{name}(0, 1, &j); else pool(0, threads, 1, work_{name}, &j);
  long total = 0;
  if (done) for (long u = 0; u < j.units; ++u) total += done[u];
  return total;
}}
"""

FIND = """\
#define FIND(name, array, begin, stop, coord) \\
  long name = (begin); \\
  {{ long high_ = (stop); const long want_ = (coord); \\
    while (name < high_) {{ \\
      const long m_ = (name + high_) / 2; \\
      if (array[m_] < want_) name = m_ + 1; else high_ = m_; \\
    }} \\
    if (name < (stop) && array[name] != want_) name = (stop); }}
""".replace("{{", "{").replace("}}", "}")

SHUFFLES = """\
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES 1
#endif
#endif
"""

HALVES = """\
static inline {half} {whole}_halves({whole} v) {{
#if SHUFFLES
  return __builtin_shufflevector(v, v, {low}) + __builtin_shufflevector(v, v, {high});
#else
  const {half} *h = (const {half} *)&v;
  return h[0] + h[1];
#endif
}}
static inline real {whole}_sum({whole} v) {{ return {half}_sum({whole}_halves(v)); }}"""

# The sums of four vectors, side by side. Each step adds halves of two vectors, so no lane is added in vain.
FOUR_SUMS = """\
static inline v4 {v}_sums({v} a, {v} b, {v} c, {v} d) {{
#if SHUFFLES
  const {v} ab = __builtin_shufflevector(a, b, {keep}) + __builtin_shufflevector(a, b, {swap});
  const {v} cd = __builtin_shufflevector(c, d, {keep}) + __builtin_shufflevector(c, d, {swap});
  {v} t = __builtin_shufflevector(ab, cd, {first}) + __builtin_shufflevector(ab, cd, {second});
{folds}
  return __builtin_shufflevector(t, t, {ends});
#else
  return (v4){{{v}_sum(a), {v}_sum(b), {v}_sum(c), {v}_sum(d)}};
#endif
}}
"""

NO_WORKSPACE = """\
typedef struct { int unused; } ws_t;
#define ws_free(w) (void)(w)
"""

MEMORY = """\
void *malloc(unsigned long); void *calloc(unsigned long, unsigned long); void free(void *);
"""

# Values by coordinate, and bits that say which are used: draining them is in order, without a sort. The bits are first
# turned into a list, four at a time whether they are there or not: a branch for each would be a guess for each.
_LISTED = """\
static inline long ws_word(int *list, long n, long base, unsigned long bits) {
  const long count = __builtin_popcountl(bits);
  for (int t = 0; t < 4; ++t) list[n + t] = base + __builtin_ctzl(bits | 1ul << 63), bits &= bits - 1;
  for (long t = 4; t < count; ++t) list[n + t] = base + __builtin_ctzl(bits), bits &= bits - 1;
  return n + count;
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
typedef struct { real *val; unsigned long *bits; int *list; long size; } ws_t;
static void ws_open(ws_t *w, long size) {
  if (w->val) return;
  w->size = size, w->val = calloc(size + 1, sizeof(real)), w->bits = calloc(size / 64 + 1, 8);
  w->list = malloc((size + 64) * sizeof(int));
}
static void ws_free(ws_t *w) { if (w->val) free(w->val), free(w->bits), free(w->list); }
static inline void ws_add(ws_t *w, long i, real v) {
  w->val[i] += v;
  w->bits[i >> 6] |= 1ul << (i & 63);
}
static inline long ws_word(int *list, long n, long base, unsigned long bits);
static long ws_list(ws_t *w) {
  long n = 0;
  for (long b = 0; b <= w->size >> 6; ++b) n = ws_word(w->list, n, b * 64, w->bits[b]), w->bits[b] = 0;
  return n;
}
"""
    + _LISTED
)

# With a second level of bits over the first, so that a few entries among millions are found at once.
WIDE_WORKSPACE = (
    MEMORY
    + """\
typedef struct { real *val; unsigned long *bits, *top; int *list; long size; } ws_t;
static void ws_open(ws_t *w, long size) {
  if (w->val) return;
  w->size = size, w->val = calloc(size + 1, sizeof(real));
  w->bits = calloc(size / 64 + 1, 8), w->top = calloc(size / 4096 + 1, 8), w->list = malloc((size + 64) * sizeof(int));
}
static void ws_free(ws_t *w) { if (w->val) free(w->val), free(w->bits), free(w->top), free(w->list); }
static inline void ws_add(ws_t *w, long i, real v) {
  w->val[i] += v;
  w->bits[i >> 6] |= 1ul << (i & 63);
  w->top[i >> 12] |= 1ul << (i >> 6 & 63);
}
static inline long ws_word(int *list, long n, long base, unsigned long bits);
static long ws_list(ws_t *w) {
  long n = 0;
  for (long t = 0; t <= w->size >> 12; ++t) {
    for (unsigned long top = w->top[t]; top; top &= top - 1) {
      const long b = t * 64 + __builtin_ctzl(top);
      n = ws_word(w->list, n, b * 64, w->bits[b]), w->bits[b] = 0;
    }
    w->top[t] = 0;
  }
  return n;
}
"""
    + _LISTED
)

# Coordinates in a table of open addresses that grows; drained in order after a sort of those in use.
HASH_WORKSPACE = (
    MEMORY
    + """\
typedef struct { long *key; real *val; long *list; long cap, count; } ws_t;
static void ws_free(ws_t *w) { if (w->key) free(w->key), free(w->val), free(w->list); }
static void ws_fresh(ws_t *w, long cap) {
  w->cap = cap, w->count = 0;
  w->key = malloc(cap * 8), w->val = malloc(cap * sizeof(real)), w->list = malloc(cap * 8);
  for (long s = 0; s < cap; ++s) w->key[s] = -1;
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
#define DRAIN(w, coord, value, ...) \\
  ws_sort((w)->list, (w)->count); \\
  for (long t_ = 0; t_ < (w)->count; ++t_) { \\
    const long coord = (w)->list[t_]; \\
    const long s_ = ws_slot(w, coord); \\
    const real value = (w)->val[s_]; \\
    __VA_ARGS__ \\
  } \\
  for (long t_ = 0; t_ < (w)->count; ++t_) (w)->list[t_] = ws_slot(w, (w)->list[t_]); \\
  for (long t_ = 0; t_ < (w)->count; ++t_) (w)->key[(w)->list[t_]] = -1; \\
  (w)->count = 0;
"""
)

MATH = """\
{real} sqrt{f}({real}); {real} sin{f}({real}); {real} cos{f}({real}); {real} tanh{f}({real});
{real} exp{f}({real}); {real} expm1{f}({real}); {real} log1p{f}({real});
"""

# Units wrote their entries where they had room for the most they could have; move them together.
CLOSE = """\
void *memcpy(void *, const void *, unsigned long);
struct gaps {{
  const long *start, *done; const {crd} *crd; const real *val; {crd} *to_crd; real *to_val; const long *to;
}};
static void close_some(long begin, long end, void *p) {{
  const struct gaps *g = p;
  for (long u = begin; u < end; ++u) {{
    memcpy(g->to_crd + g->to[u], g->crd + g->start[u], g->done[u] * sizeof({crd}));
    memcpy(g->to_val + g->to[u], g->val + g->start[u], g->done[u] * sizeof(real));
  }}
}}
static long add_up(const long *count, long units, long *to) {{
  long total = 0;
  for (long u = 0; u < units; ++u) to[u] = total, total += count[u];
  return total;
}}
long run_close(pool_t pool, long threads, long units, void *const *a, const long *z, const long *start, long *done) {{
  struct gaps g = {{start, done, a[0], a[1], a[2], a[3], z}};
  add_up(done, units, (long *)z);
  if (threads < 2) close_some(0, units, &g); else pool(0, units, 1, close_some, &g);
  return 0;
}}
long run_starts(pool_t pool, long threads, long units, void *const *a, const long *z, const long *start, long *done) {{
  return add_up(done, units, (long *)start);
}}
"""
