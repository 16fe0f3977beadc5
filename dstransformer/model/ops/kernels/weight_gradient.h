// The gradient of a product's weights (section 3.3), in fp32.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace {

// The tile of the result that is summed in registers, and the block that is packed for the tiles: rows, and columns of
// the gradient and of the input (128 KB and 256 KB, which fit into the second-level cache).
constexpr int64_t kTile = 8, kTileVectors = 2, kTileColumns = kTileVectors * kLanes;
constexpr int64_t kDepth = 256, kGradColumns = 128, kInputColumns = 256;

// Columns of a matrix in panels, each of them row after row, with zeros beyond the last column; sixteen rows at a time,
// because with some strides between rows cache lines displace each other.
template <int64_t kPanel>
void pack_panels(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  for (int64_t begin = 0; begin < rows; begin += 16)
    for (int64_t column = 0; column < columns; column += kPanel)
      for (int64_t row = begin; row < std::min(rows, begin + 16); ++row) {
        const float* line = from + row * stride + column;
        float* packed = to + column * rows + row * kPanel;
        if (column + kPanel <= columns)
          std::memcpy(packed, line, kPanel * sizeof(float));
        else
          for (int64_t i = 0; i < kPanel; ++i) packed[i] = column + i < columns ? line[i] : 0.0f;
      }
}

// Adds a transposed panel of the gradient times a panel of the input to `lines` rows of the result, or stores it there.
void multiply_panels(const float* grad, const float* x, int64_t rows, bool add, float* result, int64_t stride,
                     int64_t lines) {
  for (int64_t line = 0; line < lines; ++line)
    for (int64_t i = 0; i < kTileColumns; i += kLanes) __builtin_prefetch(result + line * stride + i, 1);
  Floats sums[kTile][kTileVectors] = {};
  for (int64_t row = 0; row < rows; ++row, grad += kTile, x += kTileColumns)
#pragma GCC unroll 8
    for (int64_t line = 0; line < kTile; ++line)
#pragma GCC unroll 2
      for (int64_t i = 0; i < kTileVectors; ++i) sums[line][i] += load(x + i * kLanes) * grad[line];
  for (int64_t line = 0; line < lines; ++line)
    for (int64_t i = 0; i < kTileVectors; ++i) {
      float* to = result + line * stride + i * kLanes;
      store(add ? load(to) + sums[line][i] : sums[line][i], to);
    }
}

// grad^T x: (rows, outs) and (rows, ins) to (outs, ins). `ins` is a multiple of kTileColumns, `rows` at least 1.
void weight_gradient(const float* grad, const float* x, int64_t rows, int64_t outs, int64_t ins, float* result,
                     int threads) {
  const int64_t tiles = (outs + kTile - 1) / kTile;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    const int64_t first = tiles * part / threads * kTile;
    const int64_t end = std::min(outs, tiles * (part + 1) / threads * kTile);
    float* grad_panels = scratch(0, kDepth * kGradColumns);
    float* x_panels = scratch(1, kDepth * kInputColumns);
    for (int64_t column = 0; column < ins; column += kInputColumns)
      for (int64_t row = 0; row < rows; row += kDepth) {
        const int64_t depth = std::min(kDepth, rows - row), width = std::min(kInputColumns, ins - column);
        pack_panels<kTileColumns>(x + row * ins + column, ins, depth, width, x_panels);
        for (int64_t begin = first; begin < end; begin += kGradColumns) {
          const int64_t height = std::min(kGradColumns, end - begin);
          pack_panels<kTile>(grad + row * outs + begin, outs, depth, height, grad_panels);
          for (int64_t line = 0; line < height; line += kTile)
            for (int64_t i = 0; i < width; i += kTileColumns)
              multiply_panels(grad_panels + line * depth, x_panels + i * depth, depth, row > 0,
                              result + (begin + line) * ins + column + i, ins, std::min(kTile, height - line));
        }
      }
  }
}

}  // namespace
