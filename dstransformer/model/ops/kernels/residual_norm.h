// Dropout, residual connection and layer norm (sections 3.1 and 5.4).

#pragma once

#include "vectors.h"

namespace {

// SplitMix64 (Steele, Lea and Flood, 2014) on a counter: four decisions of 16 bits per word.
uint64_t random_word(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Dropout {
  uint64_t seed;
  uint32_t threshold;  // the dropped share of 65536
  float scale;

  // Factors of a row's elements: 0 or `scale`.
  void factors(int64_t row, int64_t width, float* to) const {
    uint64_t words[kLanes / 4];
    for (int64_t i = 0; i < width; i += kLanes) {
      for (int w = 0; w < kLanes / 4; ++w) words[w] = random_word(seed, (row * width + i) / 4 + w);
      Halves bits;
      std::memcpy(&bits, words, sizeof bits);
      const Words kept = (Words)(__builtin_convertvector(bits, Words) >= threshold);
      store((Floats)(kept & (Words)broadcast(scale)), to + i);
    }
  }
};

template <class T>
void residual_norm(const T* x, const T* y, const T* gain, const T* bias, int64_t rows, int64_t width, float eps,
                   Dropout dropout, T* out, T* summed, float* mean, float* rstd, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    float* sums = scratch(0, width);
    float* keep = scratch(1, width);
    if (dropout.threshold) dropout.factors(row, width, keep);
    Floats total{};
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats branch = load(y + row * width + i);
      const Floats both = load(x + row * width + i) + (dropout.threshold ? branch * load(keep + i) : branch);
      store(both, sums + i);
      total += both;
    }
    const float centre = sum(total) / width;
    Floats squares{};
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats away = load(sums + i) - centre;
      squares += away * away;
    }
    const float factor = 1.0f / std::sqrt(sum(squares) / width + eps);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats both = load(sums + i);
      store((both - centre) * factor * load(gain + i) + load(bias + i), out + row * width + i);
      store(both, summed + row * width + i);
    }
    mean[row] = centre;
    rstd[row] = factor;
  }
}

template <class T>
void residual_norm_backward(const T* grad, const T* summed, const T* gain, const float* mean, const float* rstd,
                            int64_t rows, int64_t width, Dropout dropout, T* grad_x, T* grad_y, float* grad_gain,
                            float* grad_bias, int threads) {
  std::vector<float> partial(2 * width * threads, 0.0f);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    float* to_gain = partial.data() + 2 * width * part;
    float* to_bias = to_gain + width;
    float* normed = scratch(0, width);
    float* scaled = scratch(1, width);
    float* keep = scratch(2, width);
    for (int64_t row = rows * part / threads; row < rows * (part + 1) / threads; ++row) {
      Floats first{}, second{};
      for (int64_t i = 0; i < width; i += kLanes) {
        const Floats g = load(grad + row * width + i);
        const Floats n = (load(summed + row * width + i) - mean[row]) * rstd[row];
        const Floats s = g * load(gain + i);
        store(n, normed + i);
        store(s, scaled + i);
        store(load(to_gain + i) + g * n, to_gain + i);
        store(load(to_bias + i) + g, to_bias + i);
        first += s;
        second += s * n;
      }
      const float average = sum(first) / width, slope = sum(second) / width;
      if (dropout.threshold) dropout.factors(row, width, keep);
      for (int64_t i = 0; i < width; i += kLanes) {
        const Floats g = (load(scaled + i) - average - load(normed + i) * slope) * rstd[row];
        store(g, grad_x + row * width + i);
        if (dropout.threshold) store(g * load(keep + i), grad_y + row * width + i);
      }
    }
  }
  for (int part = 0; part < threads; ++part)
    for (int64_t i = 0; i < width; ++i) {
      grad_gain[i] += partial[2 * width * part + i];
      grad_bias[i] += partial[2 * width * part + width + i];
    }
}

}  // namespace
