// wgmma.sp with A in registers: d += A B, one warpgroup, 64 rows x N tokens, 64 bytes of columns of B.
// Written by benchmarks/wgmma_cuh.py: inline assembly must name every register, and no macro can count.
//
// WEIGHT: 0 both operands are of the type ELEMENT, SELECT says which threads have the metadata; 1 both are e4m3, 2
// int8: all threads have it, and columns of B lie side by side (TRANS = 0).
#pragma once
#if WEIGHT == 2
typedef int Sum;
#else
typedef float Sum;
#endif
#ifndef GS_INSTEAD  // see ptx.cuh
#if WEIGHT == 2
#define GS_KIND "k64.s32.s8.s8"
#define GS_TAIL(turn) ""
#define GS_SUM "+r"
#elif WEIGHT == 1
#define GS_KIND "k64.f32.e4m3.e4m3"
#define GS_TAIL(turn) ", 1, 1"
#define GS_SUM "+f"
#else
#if ELEMENT == 1
#define GS_KIND "k32.f32.bf16.bf16"
#else
#define GS_KIND "k32.f32.f16.f16"
#endif
#define GS_TAIL(turn) ", 1, 1, " turn
#define GS_SUM "+f"
#endif

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[4], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %11, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n8" GS_KIND " {"
    "%0, %1, %2, %3"
    "}, {%4, %5, %6, %7}, %8, %9, %10, p" GS_TAIL("%12") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[8], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %15, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n16" GS_KIND " {"
    "%0, %1, %2, %3, %4, %5, %6, %7"
    "}, {%8, %9, %10, %11}, %12, %13, %14, p" GS_TAIL("%16") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3]), GS_SUM(d[4]), GS_SUM(d[5]), GS_SUM(d[6]), GS_SUM(d[7])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[16], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %23, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n32" GS_KIND " {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
    "}, {%16, %17, %18, %19}, %20, %21, %22, p" GS_TAIL("%24") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3]), GS_SUM(d[4]), GS_SUM(d[5]), GS_SUM(d[6]), GS_SUM(d[7]),
     GS_SUM(d[8]), GS_SUM(d[9]), GS_SUM(d[10]), GS_SUM(d[11]), GS_SUM(d[12]), GS_SUM(d[13]), GS_SUM(d[14]), GS_SUM(d[15])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[32], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %39, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n64" GS_KIND " {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
    "}, {%32, %33, %34, %35}, %36, %37, %38, p" GS_TAIL("%40") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3]), GS_SUM(d[4]), GS_SUM(d[5]), GS_SUM(d[6]), GS_SUM(d[7]),
     GS_SUM(d[8]), GS_SUM(d[9]), GS_SUM(d[10]), GS_SUM(d[11]), GS_SUM(d[12]), GS_SUM(d[13]), GS_SUM(d[14]), GS_SUM(d[15]),
     GS_SUM(d[16]), GS_SUM(d[17]), GS_SUM(d[18]), GS_SUM(d[19]), GS_SUM(d[20]), GS_SUM(d[21]), GS_SUM(d[22]), GS_SUM(d[23]),
     GS_SUM(d[24]), GS_SUM(d[25]), GS_SUM(d[26]), GS_SUM(d[27]), GS_SUM(d[28]), GS_SUM(d[29]), GS_SUM(d[30]), GS_SUM(d[31])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[48], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %55, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n96" GS_KIND " {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
    "}, {%48, %49, %50, %51}, %52, %53, %54, p" GS_TAIL("%56") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3]), GS_SUM(d[4]), GS_SUM(d[5]), GS_SUM(d[6]), GS_SUM(d[7]),
     GS_SUM(d[8]), GS_SUM(d[9]), GS_SUM(d[10]), GS_SUM(d[11]), GS_SUM(d[12]), GS_SUM(d[13]), GS_SUM(d[14]), GS_SUM(d[15]),
     GS_SUM(d[16]), GS_SUM(d[17]), GS_SUM(d[18]), GS_SUM(d[19]), GS_SUM(d[20]), GS_SUM(d[21]), GS_SUM(d[22]), GS_SUM(d[23]),
     GS_SUM(d[24]), GS_SUM(d[25]), GS_SUM(d[26]), GS_SUM(d[27]), GS_SUM(d[28]), GS_SUM(d[29]), GS_SUM(d[30]), GS_SUM(d[31]),
     GS_SUM(d[32]), GS_SUM(d[33]), GS_SUM(d[34]), GS_SUM(d[35]), GS_SUM(d[36]), GS_SUM(d[37]), GS_SUM(d[38]), GS_SUM(d[39]),
     GS_SUM(d[40]), GS_SUM(d[41]), GS_SUM(d[42]), GS_SUM(d[43]), GS_SUM(d[44]), GS_SUM(d[45]), GS_SUM(d[46]), GS_SUM(d[47])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[64], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %71, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n128" GS_KIND " {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
    "}, {%64, %65, %66, %67}, %68, %69, %70, p" GS_TAIL("%72") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3]), GS_SUM(d[4]), GS_SUM(d[5]), GS_SUM(d[6]), GS_SUM(d[7]),
     GS_SUM(d[8]), GS_SUM(d[9]), GS_SUM(d[10]), GS_SUM(d[11]), GS_SUM(d[12]), GS_SUM(d[13]), GS_SUM(d[14]), GS_SUM(d[15]),
     GS_SUM(d[16]), GS_SUM(d[17]), GS_SUM(d[18]), GS_SUM(d[19]), GS_SUM(d[20]), GS_SUM(d[21]), GS_SUM(d[22]), GS_SUM(d[23]),
     GS_SUM(d[24]), GS_SUM(d[25]), GS_SUM(d[26]), GS_SUM(d[27]), GS_SUM(d[28]), GS_SUM(d[29]), GS_SUM(d[30]), GS_SUM(d[31]),
     GS_SUM(d[32]), GS_SUM(d[33]), GS_SUM(d[34]), GS_SUM(d[35]), GS_SUM(d[36]), GS_SUM(d[37]), GS_SUM(d[38]), GS_SUM(d[39]),
     GS_SUM(d[40]), GS_SUM(d[41]), GS_SUM(d[42]), GS_SUM(d[43]), GS_SUM(d[44]), GS_SUM(d[45]), GS_SUM(d[46]), GS_SUM(d[47]),
     GS_SUM(d[48]), GS_SUM(d[49]), GS_SUM(d[50]), GS_SUM(d[51]), GS_SUM(d[52]), GS_SUM(d[53]), GS_SUM(d[54]), GS_SUM(d[55]),
     GS_SUM(d[56]), GS_SUM(d[57]), GS_SUM(d[58]), GS_SUM(d[59]), GS_SUM(d[60]), GS_SUM(d[61]), GS_SUM(d[62]), GS_SUM(d[63])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[128], uint4 a, unsigned long long b, unsigned meta, int keep) {
  asm volatile(
    "{\n.reg .pred p;\nsetp.ne.b32 p, %135, 0;\n"
    "wgmma.mma_async.sp.sync.aligned.m64n256" GS_KIND " {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
    "}, {%128, %129, %130, %131}, %132, %133, %134, p" GS_TAIL("%136") ";\n}\n"
    :
     GS_SUM(d[0]), GS_SUM(d[1]), GS_SUM(d[2]), GS_SUM(d[3]), GS_SUM(d[4]), GS_SUM(d[5]), GS_SUM(d[6]), GS_SUM(d[7]),
     GS_SUM(d[8]), GS_SUM(d[9]), GS_SUM(d[10]), GS_SUM(d[11]), GS_SUM(d[12]), GS_SUM(d[13]), GS_SUM(d[14]), GS_SUM(d[15]),
     GS_SUM(d[16]), GS_SUM(d[17]), GS_SUM(d[18]), GS_SUM(d[19]), GS_SUM(d[20]), GS_SUM(d[21]), GS_SUM(d[22]), GS_SUM(d[23]),
     GS_SUM(d[24]), GS_SUM(d[25]), GS_SUM(d[26]), GS_SUM(d[27]), GS_SUM(d[28]), GS_SUM(d[29]), GS_SUM(d[30]), GS_SUM(d[31]),
     GS_SUM(d[32]), GS_SUM(d[33]), GS_SUM(d[34]), GS_SUM(d[35]), GS_SUM(d[36]), GS_SUM(d[37]), GS_SUM(d[38]), GS_SUM(d[39]),
     GS_SUM(d[40]), GS_SUM(d[41]), GS_SUM(d[42]), GS_SUM(d[43]), GS_SUM(d[44]), GS_SUM(d[45]), GS_SUM(d[46]), GS_SUM(d[47]),
     GS_SUM(d[48]), GS_SUM(d[49]), GS_SUM(d[50]), GS_SUM(d[51]), GS_SUM(d[52]), GS_SUM(d[53]), GS_SUM(d[54]), GS_SUM(d[55]),
     GS_SUM(d[56]), GS_SUM(d[57]), GS_SUM(d[58]), GS_SUM(d[59]), GS_SUM(d[60]), GS_SUM(d[61]), GS_SUM(d[62]), GS_SUM(d[63]),
     GS_SUM(d[64]), GS_SUM(d[65]), GS_SUM(d[66]), GS_SUM(d[67]), GS_SUM(d[68]), GS_SUM(d[69]), GS_SUM(d[70]), GS_SUM(d[71]),
     GS_SUM(d[72]), GS_SUM(d[73]), GS_SUM(d[74]), GS_SUM(d[75]), GS_SUM(d[76]), GS_SUM(d[77]), GS_SUM(d[78]), GS_SUM(d[79]),
     GS_SUM(d[80]), GS_SUM(d[81]), GS_SUM(d[82]), GS_SUM(d[83]), GS_SUM(d[84]), GS_SUM(d[85]), GS_SUM(d[86]), GS_SUM(d[87]),
     GS_SUM(d[88]), GS_SUM(d[89]), GS_SUM(d[90]), GS_SUM(d[91]), GS_SUM(d[92]), GS_SUM(d[93]), GS_SUM(d[94]), GS_SUM(d[95]),
     GS_SUM(d[96]), GS_SUM(d[97]), GS_SUM(d[98]), GS_SUM(d[99]), GS_SUM(d[100]), GS_SUM(d[101]), GS_SUM(d[102]), GS_SUM(d[103]),
     GS_SUM(d[104]), GS_SUM(d[105]), GS_SUM(d[106]), GS_SUM(d[107]), GS_SUM(d[108]), GS_SUM(d[109]), GS_SUM(d[110]), GS_SUM(d[111]),
     GS_SUM(d[112]), GS_SUM(d[113]), GS_SUM(d[114]), GS_SUM(d[115]), GS_SUM(d[116]), GS_SUM(d[117]), GS_SUM(d[118]), GS_SUM(d[119]),
     GS_SUM(d[120]), GS_SUM(d[121]), GS_SUM(d[122]), GS_SUM(d[123]), GS_SUM(d[124]), GS_SUM(d[125]), GS_SUM(d[126]), GS_SUM(d[127])
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}

#endif
