"""What every kernel's C begins with: work shared among torch's threads, search, workspaces. No header is included."""

SHARE = """\
typedef void (*task_t)(long, long, void *);
typedef int (*pool_t)(long, long, long, task_t, void *);
struct job { void *const *a; const long *z; long *start, *done; long units, chunks, next, failed; };

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
    if (ws.failed) {{ __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED); break; }}
  }}
  ws_free(&ws);
}}
long run_{name}(pool_t pool, long threads, long chunks, void *const *a, const long *z, long *start, long *done) {{
  struct job j = {{a, z, start, done, units_{name}(a, z), chunks, 0, 0}};
  if (j.chunks > j.units) j.chunks = j.units > 1 ? j.units : 1;
{parts}\
  if (threads < 2 || j.chunks < 2) work_{name}(0, 1, &j); else pool(0, threads, 1, work_{name}, &j);
{joined}\
  if (j.failed) return -1;
  long total = 0;
  if (done) for (long u = 0; u < j.units; ++u) total += done[u];
  return total;
}}
/* the same with one argument, since each takes Python time: the pool, threads, chunks, sizes, then the arrays */
long call_{name}(void *const *p) {{
  return run_{name}((pool_t)p[0], (long)p[1], (long)p[2], p + 4, (const long *)p[3], 0, 0);
}}
"""

#: Bytes of the results of all chunks up to which they are on the stack, and added up before the kernel returns.
JOINED = 1 << 14

# A result for each chunk: small ones together, in the order of the chunks, in more bits than they have.
PARTS = """\
  const long each = z[{total}], joins = j.chunks > 1 && j.chunks * each * (long)sizeof(real) <= {limit};
  real parts[joins ? j.chunks * each : 1];
  void *own[{arrays}];
  if (joins) {{
    __builtin_memset(parts, 0, j.chunks * each * sizeof(real));
    __builtin_memcpy(own, a, sizeof own);
    own[{out}] = parts, j.a = own;
  }}
"""

JOIN = """\
  if (joins) {{
    for (long t = 0; t < each; ++t) {{
      {sum} s = 0;
      for (long c = 0; c < j.chunks; ++c) s += parts[c * each + t];
      ((real *)a[{out}])[t] = s;
    }}
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

# A lane that is loaded by itself: gcc would load indices as vectors, take them apart, or use instructions that gather,
# all of them slower.
LANE = """\
#if defined(__x86_64__) && defined(__GNUC__)
#define LANE(e) ({ real lane_ = (e); __asm__("" : "+x"(lane_)); lane_; })
#else
#define LANE(e) (e)
#endif"""

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

# The sums of four vectors, side by side. Each step adds halves of two vectors, so no addition is wasted.
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

MATH = """\
{real} sqrt{f}({real}); {real} sin{f}({real}); {real} cos{f}({real}); {real} tanh{f}({real});
{real} exp{f}({real}); {real} expm1{f}({real}); {real} log1p{f}({real});
"""
