// The instructions that C++ has no word for, and nothing else. Tests run kernels on a CPU, with another file in place of
// this one (GS_INSTEAD, tests/native/emulate_tensor_cores.h).
#pragma once
#ifdef GS_INSTEAD
#include GS_INSTEAD
#else

// float16, as bits.
__device__ __forceinline__ float half_to_float(unsigned short e) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(e));
  return f;
}

__device__ __forceinline__ unsigned short float_to_half(float f) {  // to the nearest, ties to even
  unsigned short e;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(e) : "f"(f));
  return e;
}

// Two e4m3 numbers, `low` in the low byte: to the nearest, ties to even, beyond 448 to 448; NaN stays NaN.
__device__ __forceinline__ unsigned to_e4m3(float low, float high) {
  unsigned short e = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(e) : "f"(high), "f"(low));
#endif
  return e;
}

// The two e4m3 numbers in one half of a word as two float16, exactly.
template <int HIGH_HALF>
__device__ __forceinline__ unsigned halves_of_e4m3(unsigned four) {
  unsigned r = 0;
#if __CUDA_ARCH__ >= 890
  if (HIGH_HALF)
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}\n" : "=r"(r) : "r"(four));
  else
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n" : "=r"(r) : "r"(four));
#endif
  return r;
}

// An int8 number in the low byte: to the nearest, ties to even, beyond -128 .. 127 to these; NaN becomes 0.
__device__ __forceinline__ unsigned to_int8(float f) {
  int i;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(i) : "f"(f));
  return i & 255;
}

// Four bytes of `low` and `high`, each chosen by four bits of `pick`, of which the highest is 0.
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high, unsigned pick) {
  unsigned r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(pick));
  return r;
}

// (a | b) & c, as the one instruction that it is.
__device__ __forceinline__ unsigned or_and(unsigned a, unsigned b, unsigned c) {
  unsigned r;
  asm("lop3.b32 %0, %1, %2, %3, 0xa8;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// sum + the products of four bytes with four bytes.
__device__ __forceinline__ unsigned dot4(unsigned a, unsigned b, unsigned sum) {
  unsigned r;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
  return r;
}

// sum + the products of two 16-bit numbers with the two lower bytes of b.
__device__ __forceinline__ unsigned dot2(unsigned a, unsigned b, unsigned sum) {
  unsigned r;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
  return r;
}

__device__ __forceinline__ void init_bar(unsigned bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void arrive(unsigned bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrive once all copies that this thread has begun are complete.
__device__ __forceinline__ void arrive_when_copied(unsigned bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void expect_tx(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(unsigned bar, int phase) {
  asm volatile(
    "{\n.reg .pred p;\nagain:\n"
    "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
    "@!p bra again;\n}\n" ::"r"(bar), "r"(phase) : "memory");
}

// What this kernel reads and writes waits for the one before it in the stream.
__device__ __forceinline__ void wait_for_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may be set up from now on.
__device__ __forceinline__ void let_the_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void after_the_kernel_before() {
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
}

template <int CLUSTER_SIZE>
__device__ __forceinline__ void sync_cluster() {
  if (CLUSTER_SIZE > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}

// Threads `THREADS` of a block that name the same barrier wait for each other.
template <int THREADS>
__device__ __forceinline__ void sync_some(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

// What init_bar wrote is seen by the copy engine, and by other blocks of the cluster.
__device__ __forceinline__ void fence_bars() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Registers of a thread, of a warpgroup as a whole: of those that feed, and of those that multiply.
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The compiler takes a value as it is now, and does not compute it again or early.
__device__ __forceinline__ void settle(unsigned& number) { asm volatile("" : "+r"(number)); }
__device__ __forceinline__ void settle(const char*& pointer) { asm volatile("" : "+l"(pointer)); }
__device__ __forceinline__ void settle(const char*& pointer, unsigned& number) { asm volatile("" : "+l"(pointer), "+r"(number)); }

// Registers that are still read.
__device__ __forceinline__ void hold(uint4 v) { asm volatile("" ::"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)); }
__device__ __forceinline__ void hold(uint4 v, unsigned more) {
  asm volatile("" ::"r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(more));
}

// Shared memory written by threads is read by the tensor cores or the copy engine next.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// 16 bytes from global to shared memory; if not WHOLE, the last 16 - `bytes` of them zero.
template <bool WHOLE>
__device__ __forceinline__ void copy16(unsigned dst, const void* src, int bytes) {
  if (WHOLE)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

// Many bytes from global to shared memory by the copy engine, counted by a barrier.
__device__ __forceinline__ void bulk_copy(unsigned dst, const void* src, int bytes, unsigned bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar) : "memory");
}

__device__ __forceinline__ uint4 lds128(unsigned at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}

__device__ __forceinline__ uint2 lds64(unsigned at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}

// A lane that is chosen by the hardware: the compiler then knows that it is one, and makes no loop over lanes for a copy.
__device__ __forceinline__ bool elected() {
  unsigned is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(is));
  return is;
}

// Any function of three bits, by its table: bit 4 a + 2 b + c.
template <int TABLE>
__device__ __forceinline__ unsigned logic(unsigned a, unsigned b, unsigned c) {
  unsigned r;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
  return r;
}

__device__ __forceinline__ unsigned lds32(unsigned at) {
  unsigned v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

// The word `OFFSET` bytes after `at` if `word` has any of `bits`; else zero.
template <int OFFSET>
__device__ __forceinline__ unsigned word_if(unsigned at, unsigned word, unsigned bits) {
  unsigned v;
  asm volatile(
    "{\n.reg .pred p;\n.reg .b32 t;\nand.b32 t, %2, %3;\nsetp.ne.u32 p, t, 0;\nmov.b32 %0, 0;\n"
    "@p ld.shared.u32 %0, [%1 + %4];\n}\n" : "=&r"(v) : "r"(at), "r"(word), "r"(bits), "n"(OFFSET) : "memory");
  return v;
}

// The word `OFFSET` bytes after `at` if `word` has any of `bits`; else `other`.
template <int OFFSET>
__device__ __forceinline__ unsigned word_or(unsigned other, unsigned at, unsigned word, unsigned bits) {
  asm volatile(
    "{\n.reg .pred p;\n.reg .b32 t;\nand.b32 t, %2, %3;\nsetp.ne.u32 p, t, 0;\n@p ld.shared.u32 %0, [%1 + %4];\n}\n"
    : "+r"(other) : "r"(at), "r"(word), "r"(bits), "n"(OFFSET) : "memory");
  return other;
}

// The 16 bits at `at` if `word` has any of `bits`; else zero.
__device__ __forceinline__ unsigned half_if(unsigned at, unsigned word, unsigned bits) {
  unsigned v;
  asm volatile(
    "{\n.reg .pred p;\n.reg .b32 t;\nand.b32 t, %2, %3;\nsetp.ne.u32 p, t, 0;\nmov.b32 %0, 0;\n"
    "@p ld.shared.u16 %0, [%1];\n}\n" : "=&r"(v) : "r"(at), "r"(word), "r"(bits) : "memory");
  return v;
}

template <int OFFSET>
__device__ __forceinline__ unsigned lds16(unsigned at) {
  unsigned short v;
  asm volatile("ld.shared.u16 %0, [%1 + %2];" : "=h"(v) : "r"(at), "n"(OFFSET) : "memory");
  return v;
}

__device__ __forceinline__ int lds8(unsigned at) {
  int v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

// Copies that this thread has begun since the last such mark are a group; until at most LEFT groups are on their way.
__device__ __forceinline__ void mark_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Until no copy of this thread is on its way.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ unsigned pack2(float low, float high) {
  unsigned r;
#if ELEMENT == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
  return r;
}

// Two products, or sums, of ELEMENT.
__device__ __forceinline__ unsigned multiply2(unsigned a, unsigned b) {
  unsigned r;
#if ELEMENT == 1
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000));  // - 0
#else
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000));
#endif
  return r;
}

__device__ __forceinline__ unsigned add2(unsigned a, unsigned b) {
  unsigned r;
#if ELEMENT == 1
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3f803f80), "r"(b));
#else
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3c003c00), "r"(b));
#endif
  return r;
}

// The transpose of an 8 x 8 matrix whose row g lies in quad g.
__device__ __forceinline__ unsigned turn(unsigned w) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(w));
  return r;
}

__device__ __forceinline__ void sts32(unsigned at, unsigned v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ void sts16(unsigned at, unsigned low) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"((unsigned short)low) : "memory");
}

__device__ __forceinline__ void sts64(unsigned at, unsigned low, unsigned high) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(low), "r"(high) : "memory");
}

__device__ __forceinline__ void sts128(unsigned at, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// The same matrices, each transposed.
__device__ __forceinline__ void ldmatrix_turned(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// 2 to the power of a number, with an error of 2 units in the last place; 0 for minus infinity.
__device__ __forceinline__ float exp2_of(float f) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
  return r;
}

#if __CUDA_ARCH__ >= 900
// Four 8 x 8 matrices of b16, in the order of the accumulators; TURN: transposed. A lane gives the address of a line.
template <bool TURN>
__device__ __forceinline__ void stmatrix(unsigned at, const unsigned (&w)[4]) {
  if (TURN)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}

// A box of a matrix to shared memory, by the copy engine, counted by a barrier; zeros where it reaches beyond the matrix.
__device__ __forceinline__ void tensor_load(unsigned dst, const void* map, int x, int y, unsigned bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

// A box of shared memory to its place in a matrix, by the copy engine; a group of its own.
__device__ __forceinline__ void tensor_store(const void* map, int x, int y, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;" ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory");
}
#endif

#if ELEMENT == 1 && !defined(HALF_PRODUCTS)  // products of float16, results of ELEMENT
#define GS_MMA "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32"
#else
#define GS_MMA "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"
#endif

// d += A B: 16 rows x 8 tokens x 32 compacted columns.
template <int SELECT>
__device__ __forceinline__ void mma_sp(float (&d)[4], uint4 a, const unsigned (&b)[4], unsigned meta) {
  asm volatile(GS_MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(meta), "n"(SELECT));
}

#if ELEMENT == 1
#define GS_DENSE "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define GS_DENSE "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif

// d += A B: 16 rows x 8 tokens x 16 columns.
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(GS_DENSE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four floats of block `rank` of the cluster.
__device__ __forceinline__ float4 load_at(unsigned at, int rank) {
  float4 f = {};
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\nld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
        : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w) : "r"(at), "r"(rank) : "memory");
#endif
  return f;
}

#if __CUDA_ARCH__ >= 900
// Until at most LEFT of this thread's tensor stores have not been read from shared memory.
template <int LEFT>
__device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

// Products of a warpgroup: registers are in order before the first; those so far are a group; at most LEFT groups go on.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
#endif
#endif
