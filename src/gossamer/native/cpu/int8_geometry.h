// Sizes of a convolution in eight bits, and the patches that its products read (int8.h).
#pragma once
#include <cstdint>
#include <vector>

#include "int8.h"

namespace gossamer {

struct Int8Dimension {
  int64_t size, kernel, stride, dilation, before, after;

  int64_t padded() const { return before + size + after; }
  int64_t out() const {  // 0: the kernel is larger than the padded input
    const int64_t room = padded() - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
};

struct Int8Convolution {
  Int8Dimension down, across;
  int64_t images, channels;
  std::vector<int64_t> start;  // of the runs of a patch

  Int8Convolution(int64_t images, int64_t channels, Int8Dimension down, Int8Dimension across)
      : down(down), across(across), images(images), channels(channels) {
    for (int64_t i = 0; i < down.kernel; i++)
      for (int64_t j = 0; j < (across.dilation == 1 ? 1 : across.kernel); j++)  // without dilation a row is one run
        start.push_back(i * down.dilation * line() + j * across.dilation * channels);
  }
  int64_t line() const { return across.padded() * channels; }
  int64_t image() const { return down.padded() * line(); }
  int64_t bytes() const { return images * image() + WINDOW; }  // of all images in eight bits, and what may be read behind
  int64_t rows() const { return images * down.padded(); }
  int64_t pixels() const { return down.out() * across.out(); }

  Int8Images quantise(const void* x, int64_t x_type, bool planes) const {
    Int8Images m{};
    m.x = x, m.x_type = x_type, m.planes = planes;
    m.images = images, m.height = down.size, m.width = across.size, m.channels = channels;
    m.top = down.before, m.bottom = down.after, m.left = across.before, m.right = across.after;
    return m;
  }
  Int8Patches patches(const uint8_t* data) const {
    const int64_t run = across.dilation == 1 ? across.kernel * channels : channels;
    return {data, down.out(), across.out(), image(), down.stride * line(), across.stride * channels, int64_t(start.size()), run, start.data()};
  }
};

}  // namespace gossamer
