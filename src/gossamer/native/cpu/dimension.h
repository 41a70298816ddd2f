// One dimension of a convolution: pixels of the result, and where each part of the kernel reads (image.h).
#pragma once
#include <cstdint>
#include <vector>

#include "image.h"

namespace gossamer {

struct Dimension {
  int64_t kernel, dilation;
  int64_t out;      // pixels of the result; 0 or less if the kernel is larger than the padded input
  bool as_it_is;    // no copy of the images is needed
  Axis axis;
  std::vector<int64_t> phases;

  Dimension(int64_t size, int64_t kernel, int64_t stride, int64_t dilation, int64_t before, int64_t after)
      : kernel(kernel), dilation(dilation), as_it_is(stride == 1 && !before && !after) {
    const int64_t last = dilation * (kernel - 1), room = size + before + after - last - 1;
    out = room < 0 ? 0 : room / stride + 1;
    for (int64_t k = 0; k < kernel; k++)
      if (slot(k, stride) == int64_t(phases.size())) phases.push_back(k * dilation % stride);
    axis = {size, before, stride, as_it_is ? size : out + last / stride, int64_t(phases.size()), phases.data()};
  }
  Dimension(const Dimension&) = delete;
  int64_t places() const { return axis.phases * axis.length; }
  int64_t place(int64_t k) const { return slot(k, axis.stride) * axis.length + k * dilation / axis.stride; }

 private:
  int64_t slot(int64_t k, int64_t stride) const {  // of the phase that part k of the kernel reads
    int64_t s = 0;
    while (s < int64_t(phases.size()) && phases[s] != k * dilation % stride) s++;
    return s;
  }
};

// Where the activations of each column of the weight begin.
inline std::vector<int64_t> columns_of(int64_t channels, const Dimension& down, const Dimension& across) {
  // a place down is (phase, row): rows of all phases across follow each other
  const int64_t line = across.places(), plane = down.places() * line;
  std::vector<int64_t> found;
  found.reserve(channels * down.kernel * across.kernel);
  for (int64_t c = 0; c < channels; c++)
    for (int64_t i = 0; i < down.kernel; i++)
      for (int64_t j = 0; j < across.kernel; j++) found.push_back(c * plane + down.place(i) * line + across.place(j));
  return found;
}

// The images of a convolution, copied or as they are; rows of pixels that follow each other without a gap are one row.
inline Image image_of(const float* data, int64_t channels, const Dimension& down, const Dimension& across,
                      const std::vector<int64_t>& columns) {
  const int64_t line = across.places(), plane = down.places() * line;
  if (line == across.out) return {data, columns.data(), channels * plane, 0, 1, down.out * across.out};
  return {data, columns.data(), channels * plane, line, down.out, across.out};
}

}  // namespace gossamer
