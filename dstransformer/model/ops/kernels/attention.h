// Attention within packed sentences (section 3.2).

#pragma once

#include <algorithm>
#include <type_traits>

#include "vectors.h"

namespace {

// R rows by V vectors of c = a b.
template <int R, int V>
void tile(int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row, float* c,
          int64_t c_row) {
  Floats sums[R][V] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Floats right[V];
    for (int v = 0; v < V; ++v) right[v] = load(b + k * b_row + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const Floats left = broadcast(a[r * a_row + k * a_column]);
      for (int v = 0; v < V; ++v) sums[r][v] += left * right[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(sums[r][v], c + r * c_row + v * kLanes);
}

// All rows by V vectors: eight or four rows at a time keep enough sums in flight; then the rest.
template <int V>
void panel(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
           float* c, int64_t c_row) {
  constexpr int kRows = V > 2 ? 4 : 8;
  int64_t r = 0;
  const auto take = [&](auto count) {
    tile<count(), V>(depth, a + r * a_row, a_row, a_column, b, b_row, c + r * c_row, c_row);
    r += count();
  };
  while (rows - r >= kRows) take(std::integral_constant<int, kRows>{});
  if (rows - r >= 4) take(std::integral_constant<int, 4>{});
  if (rows - r >= 2) take(std::integral_constant<int, 2>{});
  if (rows - r >= 1) take(std::integral_constant<int, 1>{});
}

// c (rows, columns) = a (rows, depth) b (depth, columns); columns is a multiple of 16, a may be read transposed.
void product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row, int64_t a_column,
             const float* b, int64_t b_row, float* c, int64_t c_row) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= columns; i += 4 * kLanes)
    panel<4>(rows, depth, a, a_row, a_column, b + i, b_row, c + i, c_row);
  b += i;
  c += i;
  const int64_t vectors = (columns - i) / kLanes;
  if (vectors == 3) panel<3>(rows, depth, a, a_row, a_column, b, b_row, c, c_row);
  if (vectors == 2) panel<2>(rows, depth, a, a_row, a_column, b, b_row, c, c_row);
  if (vectors == 1) panel<1>(rows, depth, a, a_row, a_column, b, b_row, c, c_row);
}

// (rows, width) into (width, rows); both are rounded up to multiples of 16, the result with zeros.
void transpose(const float* from, int64_t rows, int64_t width, float* to) {
  constexpr Ints low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  const int64_t columns = round_up(width), to_columns = round_up(rows);
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t i = 0; i < columns; i += kLanes) {
      Floats block[kLanes], next[kLanes];
      for (int line = 0; line < kLanes; ++line)
        block[line] = r + line < rows ? load(from + (r + line) * columns + i) : Floats{};
      for (int stage = 0; stage < 4; ++stage) {  // each stage interleaves lines that are eight apart
        for (int line = 0; line < kLanes / 2; ++line) {
          next[2 * line] = __builtin_shuffle(block[line], block[line + 8], low);
          next[2 * line + 1] = __builtin_shuffle(block[line], block[line + 8], low + 8);
        }
        std::memcpy(block, next, sizeof block);
      }
      for (int line = 0; line < kLanes; ++line) store(block[line], to + (i + line) * to_columns + r);
    }
}

// A packed tensor with the heads side by side in its rows.
template <class T>
struct Packed {
  T* data;
  int64_t stride;
  int64_t heads;
  int64_t width;  // width of a head

  // Some of the heads.
  Packed only(int64_t first, int64_t count) const { return {data + first * width, stride, count, width}; }

  // A sentence, times a factor, as (heads, tokens, width rounded up) in fp32; read in the order of memory.
  void read(int64_t first, int64_t tokens, float factor, float* to) const {
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < heads; ++h)
        read_row(data + (first + t) * stride + h * width, width, factor, to + (h * tokens + t) * round_up(width));
  }
  void write(const float* from, int64_t first, int64_t tokens, float factor) const {
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < heads; ++h)
        write_row(from + (h * tokens + t) * round_up(width), width, factor, data + (first + t) * stride + h * width);
  }
};

// A row of scores becomes its softmax over the first `visible` of `keys`; returns the log of their summed exponentials.
float softmax(float* row, int64_t visible, int64_t keys) {
  Floats most_lanes = broadcast(-INFINITY), masses{};
  for (int64_t j = 0; j < visible; j += kLanes)
    most_lanes = larger(most_lanes, keep_before(visible, j, load(row + j), -INFINITY));
  const float most = maximum(most_lanes);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const Floats mass = keep_before(visible, j, exponential(load(row + j) - most), 0.0f);
    store(mass, row + j);
    masses += mass;
  }
  const float mass = sum(masses), factor = 1.0f / mass;
  for (int64_t j = 0; j < keys; j += kLanes) store(load(row + j) * factor, row + j);
  return std::log(mass) + most;
}

// Recomputes the softmax of a row of scores, and turns the gradient of the weights into that of the scores.
void softmax_backward(float* row, float* slope, float log_mass, int64_t visible, int64_t keys) {
  Floats products{};
  for (int64_t j = 0; j < keys; j += kLanes) {
    const Floats weight = keep_before(visible, j, exponential(load(row + j) - log_mass), 0.0f);
    store(weight, row + j);
    products += weight * load(slope + j);
  }
  const float mean = sum(products);
  for (int64_t j = 0; j < keys; j += kLanes) store(load(row + j) * (load(slope + j) - mean), slope + j);
}

// Parts of a sentence's heads, for several threads to share when there are few sentences.
int64_t parts_of(int64_t heads, int64_t sentences, int threads) {
  const int64_t wanted = threads > 1 ? 4 * threads : 1, some = std::max<int64_t>(1, sentences);
  return std::min(heads, (wanted + some - 1) / some);
}

template <class T>
void attention(Packed<const T> all_q, Packed<const T> all_k, Packed<const T> all_v, const int32_t* q_cu,
               const int32_t* k_begin, const int32_t* k_end, int64_t sentences, bool causal, Packed<T> all_out,
               float* log_masses, int threads) {
  constexpr int64_t kQueries = 256;  // queries at once, so that a long sentence needs memory for its keys only
  const float scale = 1.0f / std::sqrt(static_cast<float>(all_q.width));
  const int64_t key_width = round_up(all_q.width), value_width = round_up(all_v.width);
  const int64_t parts = parts_of(all_q.heads, sentences, threads);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < sentences * parts; ++task) {
    const int64_t sentence = task / parts, part = task % parts;
    const int64_t begin = all_q.heads * part / parts, heads = all_q.heads * (part + 1) / parts - begin;
    const Packed<const T> q = all_q.only(begin, heads), k = all_k.only(begin, heads), v = all_v.only(begin, heads);
    const Packed<T> out = all_out.only(begin, heads);
    const int64_t first = q_cu[sentence], end = q_cu[sentence + 1];
    const int64_t k_first = k_begin[sentence], keys = k_end[sentence] - k_first, padded = round_up(keys);
    const int64_t most = std::min(end - first, kQueries);
    float* wide_q = scratch(0, heads * most * key_width);
    float* wide_k = scratch(1, heads * keys * key_width);
    float* wide_v = scratch(2, heads * keys * value_width);
    float* results = scratch(3, heads * most * value_width);
    float* turned = scratch(4, key_width * padded);
    float* weights = scratch(5, most * padded);
    k.read(k_first, keys, 1.0f, wide_k);
    v.read(k_first, keys, 1.0f, wide_v);
    for (int64_t at = first; at < end; at += kQueries) {
      const int64_t queries = std::min(end - at, kQueries);
      q.read(at, queries, scale, wide_q);
      for (int64_t head = 0; head < heads; ++head) {
        const float* head_q = wide_q + head * queries * key_width;
        const float* head_v = wide_v + head * keys * value_width;
        transpose(wide_k + head * keys * key_width, keys, q.width, turned);
        product(queries, padded, q.width, head_q, key_width, 1, turned, padded, weights, padded);
        for (int64_t i = 0; i < queries; ++i)
          log_masses[(at + i) * all_q.heads + begin + head] =
              softmax(weights + i * padded, causal ? at - first + i + 1 : keys, padded);
        float* result = results + head * queries * value_width;
        product(queries, value_width, keys, weights, padded, 1, head_v, value_width, result, value_width);
      }
      out.write(results, at, queries, 1.0f);
    }
  }
}

template <class T>
void attention_backward(Packed<const T> all_grad, Packed<const T> all_q, Packed<const T> all_k, Packed<const T> all_v,
                        const float* log_masses, const int32_t* q_cu, const int32_t* k_begin, const int32_t* k_end,
                        int64_t sentences, bool causal, Packed<T> all_grad_q, Packed<T> all_grad_k,
                        Packed<T> all_grad_v, int threads) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(all_q.width));
  const int64_t key_width = round_up(all_q.width), value_width = round_up(all_v.width);
  const int64_t parts = parts_of(all_q.heads, sentences, threads);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < sentences * parts; ++task) {
    const int64_t sentence = task / parts, part = task % parts;
    const int64_t begin = all_q.heads * part / parts, heads = all_q.heads * (part + 1) / parts - begin;
    const Packed<const T> q = all_q.only(begin, heads), k = all_k.only(begin, heads), v = all_v.only(begin, heads);
    const Packed<const T> grad = all_grad.only(begin, heads);
    const int64_t first = q_cu[sentence], queries = q_cu[sentence + 1] - first;
    const int64_t k_first = k_begin[sentence], keys = k_end[sentence] - k_first, padded = round_up(keys);
    // The gradients replace the tensors that they belong to, one head at a time.
    float* wide_q = scratch(0, heads * queries * key_width);
    float* wide_k = scratch(1, heads * keys * key_width);
    float* wide_v = scratch(2, heads * keys * value_width);
    float* wide_grad = scratch(3, heads * queries * value_width);
    float* turned = scratch(4, (key_width > value_width ? key_width : value_width) * padded);
    float* weights = scratch(5, queries * padded);
    float* slopes = scratch(6, queries * padded);
    float* of_keys = scratch(7, keys * key_width);
    q.read(first, queries, scale, wide_q);
    k.read(k_first, keys, 1.0f, wide_k);
    v.read(k_first, keys, 1.0f, wide_v);
    grad.read(first, queries, 1.0f, wide_grad);
    for (int64_t head = 0; head < heads; ++head) {
      float* head_q = wide_q + head * queries * key_width;
      float* head_k = wide_k + head * keys * key_width;
      float* head_v = wide_v + head * keys * value_width;
      const float* head_grad = wide_grad + head * queries * value_width;
      transpose(head_v, keys, v.width, turned);
      product(queries, padded, v.width, head_grad, value_width, 1, turned, padded, slopes, padded);
      transpose(head_k, keys, q.width, turned);
      product(queries, padded, q.width, head_q, key_width, 1, turned, padded, weights, padded);
      for (int64_t i = 0; i < queries; ++i)
        softmax_backward(weights + i * padded, slopes + i * padded,
                         log_masses[(first + i) * all_q.heads + begin + head], causal ? i + 1 : keys, padded);
      product(keys, value_width, queries, weights, 1, padded, head_grad, value_width, head_v, value_width);
      product(keys, key_width, queries, slopes, 1, padded, head_q, key_width, of_keys, key_width);
      product(queries, key_width, keys, slopes, padded, 1, head_k, key_width, head_q, key_width);
      std::memcpy(head_k, of_keys, keys * key_width * sizeof(float));
    }
    all_grad_q.only(begin, heads).write(wide_q, first, queries, scale);
    all_grad_k.only(begin, heads).write(wide_k, k_first, keys, 1.0f);
    all_grad_v.only(begin, heads).write(wide_v, k_first, keys, 1.0f);
  }
}

}  // namespace
