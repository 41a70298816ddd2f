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
void run_{name}(pool_t pool, long threads, long chunks, void *const *a, const long *z, const long *start, long *done) {{
  struct job j = {{a, z, start, done, units_{name}(a, z), chunks, 0}};
  if (j.chunks > j.units) j.chunks = j.units;
  if (threads < 2 || j.chunks < 2) work_{name}(0, 1, &j); else pool(0, threads, 1, work_{name}, &j);
}}
"""

FIND = """\
#define FIND(name, array, begin, stop, coord) \\
  long name = (begin); \\
  {{ long high_ = (stop); const long want_ = (coord); \\
    while (name < high_) {{ const long m_ = (name + high_) / 2; if (array[m_] < want_) name = m_ + 1; else high_ = m_; }} \\
    if (name < (stop) && array[name] != want_) name = (stop); }}
""".replace("{{", "{").replace("}}", "}")

NO_WORKSPACE = """\
typedef struct { int unused; } ws_t;
#define ws_free(w) (void)(w)
"""

MEMORY = """\
void *malloc(unsigned long); void *calloc(unsigned long, unsigned long); void free(void *);
"""

# Values by coordinate, and two levels of bits that say which are used: draining them is in order, without a sort.
DENSE_WORKSPACE = (
    MEMORY
    + """\
typedef struct { real *val; unsigned long *bits, *top; long size; } ws_t;
static void ws_open(ws_t *w, long size) {
  if (w->val) return;
  w->size = size;
  w->val = calloc(size + 1, sizeof(real)), w->bits = calloc(size / 64 + 1, 8), w->top = calloc(size / 4096 + 1, 8);
}
static void ws_free(ws_t *w) { if (w->val) free(w->val), free(w->bits), free(w->top); }
static inline void ws_add(ws_t *w, long i, real v) {
  w->val[i] += v;
  w->bits[i >> 6] |= 1ul << (i & 63);
  w->top[i >> 12] |= 1ul << (i >> 6 & 63);
}
#define DRAIN(w, coord, value, ...) \\
  for (long t_ = 0; t_ <= (w)->size >> 12; ++t_) { \\
    unsigned long top_ = (w)->top[t_]; \\
    (w)->top[t_] = 0; \\
    for (; top_; top_ &= top_ - 1) { \\
      const long b_ = t_ * 64 + __builtin_ctzl(top_); \\
      unsigned long bits_ = (w)->bits[b_]; \\
      (w)->bits[b_] = 0; \\
      for (; bits_; bits_ &= bits_ - 1) { \\
        const long coord = b_ * 64 + __builtin_ctzl(bits_); \\
        const real value = (w)->val[coord]; \\
        (w)->val[coord] = 0; \\
        __VA_ARGS__ \\
      } } }
"""
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
{real} sqrt{f}({real}); {real} sin{f}({real}); {real} cos{f}({real}); {real} tanh{f}({real}); {real} expm1{f}({real}); {real} log1p{f}({real});
"""

# Units wrote their entries where they had room for the most they could have; move them together.
CLOSE = """\
void *memcpy(void *, const void *, unsigned long);
struct gaps {{ const long *start, *done; const {crd} *crd; const real *val; {crd} *to_crd; real *to_val; const long *to; }};
static void close_some(long begin, long end, void *p) {{
  const struct gaps *g = p;
  for (long u = begin; u < end; ++u) {{
    memcpy(g->to_crd + g->to[u], g->crd + g->start[u], g->done[u] * sizeof({crd}));
    memcpy(g->to_val + g->to[u], g->val + g->start[u], g->done[u] * sizeof(real));
  }}
}}
void run_close(pool_t pool, long threads, long units, void *const *a, const long *z, const long *start, long *done) {{
  struct gaps g = {{start, done, a[0], a[1], a[2], a[3], z}};
  if (threads < 2) close_some(0, units, &g); else pool(0, units, 1, close_some, &g);
}}
"""
