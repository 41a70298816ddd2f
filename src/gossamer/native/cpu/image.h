// Images as a convolution reads them: pixels of the result are the tokens, and no patch is ever written to memory.
//
// A weight [outputs, channels, kernel_h, kernel_w] is a matrix with a column for each (channel, i, j). For a row of pixels
// of the result, the activations of a column are a run of consecutive floats of the input: with a stride of 1 as it is, and
// else of a copy in which pixels that are `stride` apart stand side by side. The copy has the padding, too.
#pragma once
#include <cstdint>

namespace gossamer {

// Rows or columns of images, padded, by their remainders modulo the stride: place i of phase q is the pixel
// i * stride + phase[q] - before. A remainder that no part of the kernel reads has no phase.
struct Axis {
  int64_t size, before, stride;
  int64_t length;          // places of a phase
  int64_t phases;
  const int64_t* phase;
};

struct Padding {           // planes of images, [height, width], to [phases down, length, phases across, length]
  const float* from;
  float* to;
  const Axis *down, *across;
};

struct Image {
  const float* data;
  const int64_t* column;   // [cols]: where the activations of a column begin, for the first pixel of the result
  int64_t image, line;     // floats from an image to the next, and from a row of pixels to the next
  int64_t height, width;   // rows of pixels, and pixels in each: neighbours in memory
};

}  // namespace gossamer
