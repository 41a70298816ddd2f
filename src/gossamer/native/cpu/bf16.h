// bfloat16, the upper half of a float32: values are stored in it and widened as they are loaded; sums are float32.
#pragma once
#include <cstdint>
#include <cstring>

namespace gossamer {

struct Bf16 {
  uint16_t bits;
  operator float() const {
    const uint32_t wide = uint32_t(bits) << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
  }
};

}  // namespace gossamer
