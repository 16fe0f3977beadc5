// Attention to the past of a beam search.

#pragma once

#include "attention.h"

namespace {

template <class T>
float dot(const float* a, const T* b, int64_t n) {
  Floats lanes{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) lanes += load(a + i) * load(b + i);
  float total = sum(lanes);
  for (; i < n; ++i) total += a[i] * widen(b[i]);
  return total;
}

template <class T>
void add(float factor, const T* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(load(to + i) + factor * load(from + i), to + i);
  for (; i < n; ++i) to[i] += factor * widen(from[i]);
}

// Every row attends to the positions on its path: its own, the last one, and those of the rows that it continues.
// `past` holds each position's queries, keys and values, row by row.
template <class T>
void attend_path(const T* const* past, const int32_t* path, int64_t rows, int64_t length, int64_t heads, int64_t d_k,
                 int64_t d_v, T* out, int threads) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(d_k));
  const int64_t keys_width = heads * d_k, values_width = heads * d_v, width = 2 * keys_width + values_width;
  const int64_t padded = round_up(length);
  const int64_t few = std::max<int64_t>(1, std::min<int64_t>(32, rows / (4 * threads)));
#pragma omp parallel for schedule(dynamic, few) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    float* query = scratch(0, heads * round_up(d_k));
    float* weights = scratch(1, heads * padded);
    float* result = scratch(2, heads * round_up(d_v));
    const auto at = [&](int64_t t) { return past[t] + path[row * length + t] * width; };
    for (int64_t h = 0; h < heads; ++h) read_row(at(length - 1) + h * d_k, d_k, scale, query + h * round_up(d_k));
    for (int64_t t = 0; t < length; ++t) {
      const T* keys = at(t) + keys_width;
      for (int64_t h = 0; h < heads; ++h) weights[h * padded + t] = dot(query + h * round_up(d_k), keys + h * d_k, d_k);
    }
    for (int64_t h = 0; h < heads; ++h) softmax(weights + h * padded, length, padded);
    std::memset(result, 0, heads * round_up(d_v) * sizeof(float));
    for (int64_t t = 0; t < length; ++t) {
      const T* values = at(t) + 2 * keys_width;
      for (int64_t h = 0; h < heads; ++h)
        add(weights[h * padded + t], values + h * d_v, d_v, result + h * round_up(d_v));
    }
    for (int64_t h = 0; h < heads; ++h)
      write_row(result + h * round_up(d_v), d_v, 1.0f, out + row * values_width + h * d_v);
  }
}

}  // namespace
