// The schemas of the operators that a deployed model calls, for a program without Python, which defines them otherwise
// (gossamer/kernels/*/operators.py; tests/native/test_binding_schemas.py holds the two to be the same).
//
// A C++ program calls gossamer_define() once after it has loaded this library, before it loads a model.
#include <cstdint>

#include "torch_abi.h"

extern "C" {
int32_t aoti_torch_library_init_fragment(const char* ns, const char* file, uint32_t line, TorchLibrary**);
int32_t aoti_torch_library_def(TorchLibrary*, const char* schema);
}

#define ROWS "Tensor? row, Tensor? pos, Tensor crd, "
#define SIZES ", int rows, int cols, int block, int tile, int window, int per"
#define CONV ", int kernel_h, int kernel_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int left, int right, int top, int bottom"
#define OUT ", int activation) -> Tensor"

#define BLOCKS "Tensor pos, Tensor crd, Tensor values, Tensor x, Tensor? bias, int rows, int cols, int activation) -> Tensor"

static const char* const SCHEMAS[] = {
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale) -> Tensor",
    "int8_linear(Tensor weight, Tensor x, Tensor? bias, int rows, int activation) -> Tensor",
    "int8_linear_ranged(Tensor weight, Tensor x, Tensor? bias, Tensor? x_scale, Tensor? x_zero, Tensor? out_scale, "
    "Tensor? out_zero, int rows, int activation, int out) -> Tensor",
    "int8_conv2d(Tensor weight, Tensor x, Tensor? bias, Tensor? add, Tensor? out_scale, Tensor? out_zero, int rows" CONV OUT,
    "int8_quantize(Tensor x, Tensor? scale, Tensor? zero) -> (Tensor, Tensor, Tensor)",
    "rows_linear(" ROWS "Tensor values, Tensor x, Tensor? bias" SIZES OUT,
    "rows_forward(" ROWS "Tensor values, Tensor x, Tensor? bias" SIZES OUT,
    "rows_conv2d(" ROWS "Tensor values, Tensor x, Tensor? bias" SIZES CONV OUT,
    "rows_int8(" ROWS "Tensor values, Tensor scale, Tensor x, Tensor? bias" SIZES OUT,
    "blocks_linear(" BLOCKS,
    "blocks_forward(" BLOCKS,
    "tiles_linear(Tensor pos, Tensor bits, Tensor values, Tensor x, Tensor? bias, int rows, int cols" OUT,
};

// Schema i, without the namespace; null behind the last.
extern "C" __attribute__((visibility("default"))) const char* gossamer_schema(int32_t i) {
  return i >= 0 && i < int32_t(sizeof SCHEMAS / sizeof *SCHEMAS) ? SCHEMAS[i] : nullptr;
}

// 0, or torch's error: they are defined already, as in a process that has imported gossamer.
extern "C" __attribute__((visibility("default"))) int32_t gossamer_define() {
  TorchLibrary* library;
  int32_t error = aoti_torch_library_init_fragment("gossamer", __FILE__, __LINE__, &library);
  for (int32_t i = 0; !error && gossamer_schema(i); i++) error = aoti_torch_library_def(library, gossamer_schema(i));
  return error;
}
