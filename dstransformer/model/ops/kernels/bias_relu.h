// The gradient of a bias, and of ReLU before it (section 3.3).

#pragma once

#include "vectors.h"

namespace {

// Sums of the columns of a gradient (rows, width). If the output of a ReLU is given: sums of the gradient before it,
// which is written to `passed`. The width is a multiple of 16.
template <class T>
void bias_relu_backward(const T* grad, const T* out, int64_t rows, int64_t width, T* passed, float* sums, int threads) {
  std::vector<float> partial(width * threads, 0.0f);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    float* to = partial.data() + width * part;
    for (int64_t row = rows * part / threads; row < rows * (part + 1) / threads; ++row)
      for (int64_t i = 0; i < width; i += kLanes) {
        Floats g = load(grad + row * width + i);
        if (out) {
          g = load(out + row * width + i) <= 0.0f ? Floats{} : g;  // NaN passes
          store(g, passed + row * width + i);
        }
        store(load(to + i) + g, to + i);
      }
  }
  for (int part = 0; part < threads; ++part)
    for (int64_t i = 0; i < width; ++i) sums[i] += partial[width * part + i];
}

}  // namespace
