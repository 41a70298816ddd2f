// What the kernels for tensor cores share: barriers, copies, fragments.
#pragma once
#include "numbers.cuh"

__device__ __forceinline__ int clamp16(int bytes) { return bytes < 0 ? 0 : bytes > 16 ? 16 : bytes; }

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

// The next kernel of the stream may be set up from now on; what this one reads and writes waits for the one before it.
__device__ __forceinline__ void after_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

template <int CLUSTER_SIZE>
__device__ __forceinline__ void sync_cluster() {
  if (CLUSTER_SIZE > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
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

__device__ __forceinline__ unsigned lds32(unsigned at) {
  unsigned v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

__device__ __forceinline__ int lds8(unsigned at) {
  int v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

// Shared memory in 128-byte swizzle, as wgmma reads it.
__device__ __forceinline__ unsigned long long descriptor(unsigned at, unsigned leading, unsigned stride) {
  return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
     (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ unsigned pack2(float low, float high) {
  unsigned r;
#if ELEMENT == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
  return r;
}

__device__ __forceinline__ float act(float v) { return activated(v, ACT); }

// The four words of a thread become word `t` of each of the four threads of its quad.
__device__ __forceinline__ void exchange(unsigned (&w)[4], int t) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      unsigned sent = t & bit ? w[i] : w[i + bit];
      unsigned got = __shfl_xor_sync(0xffffffff, sent, bit);
      if (t & bit)
        w[i] = got;
      else
        w[i + bit] = got;
    }
}

// The transpose of an 8 x 8 matrix whose row g lies in quad g.
__device__ __forceinline__ unsigned turn(unsigned w) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(w));
  return r;
}

// 8 values, or as many as there are left; whole if the place is aligned.
__device__ __forceinline__ void put8(char* to, const unsigned (&w)[4], int left) {
  if (left >= 8 && ((unsigned long long)to & 15) == 0) {
    *(uint4*)to = uint4{w[0], w[1], w[2], w[3]};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < left) ((u16*)to)[i] = (u16)(w[i >> 1] >> (16 * (i & 1)));
  }
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

#if __CUDA_ARCH__ >= 900
// Four 8 x 8 matrices of b16, in the order of the accumulators; TURN: transposed. A lane gives the address of a line.
template <bool TURN>
__device__ __forceinline__ void stmatrix(unsigned at, const unsigned (&w)[4]) {
  if (TURN)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}

// A box of shared memory to its place in a matrix, by the copy engine; a group of its own.
__device__ __forceinline__ void tensor_store(const void* map, int x, int y, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;" ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory");
}
#endif

#if ELEMENT == 1
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

// A float of block `rank` of the cluster.
__device__ __forceinline__ float load_at(unsigned at, int rank) {
  float f = 0.f;
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}\n"
        : "=f"(f) : "r"(at), "r"(rank) : "memory");
#endif
  return f;
}
