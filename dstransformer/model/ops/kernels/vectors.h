// Vectors of 16 floats: reading and writing fp32 and bf16, exponentials, sums.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using bf16 = uint16_t;
constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

int64_t round_up(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

Floats broadcast(float x) { return x - Floats{}; }

Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

void store(Floats x, float* to) { std::memcpy(to, &x, sizeof x); }

Floats load(const bf16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
void store(Floats x, bf16* to) {
  const Words bits = (Words)x;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = (Words)(x != x);
  const Halves halves = __builtin_convertvector((nan & 0x7fc0u) | (~nan & rounded), Halves);
  std::memcpy(to, &halves, sizeof halves);
}

float widen(float x) { return x; }

float widen(bf16 x) {
  const uint32_t bits = uint32_t{x} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

void narrow(float x, float* to) { *to = x; }

void narrow(float x, bf16* to) {
  bf16 lanes[kLanes];
  store(broadcast(x), lanes);
  *to = lanes[0];
}

// A row of n elements into fp32, times a factor, with zeros up to the next multiple of 16.
template <class T>
void read_row(const T* from, int64_t n, float factor, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(load(from + i) * factor, to + i);
  for (; i < n; ++i) to[i] = widen(from[i]) * factor;
  for (; i < round_up(n); ++i) to[i] = 0.0f;
}

template <class T>
void write_row(const float* from, int64_t n, float factor, T* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(load(from + i) * factor, to + i);
  for (; i < n; ++i) narrow(from[i] * factor, to + i);
}

Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Exchanges the halves of a vector at four scales: combining after each reduces over all lanes.
constexpr Ints kExchanges[4] = {{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7},
                                {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11},
                                {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13},
                                {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}};

float sum(Floats x) {
  for (const Ints& exchange : kExchanges) x += __builtin_shuffle(x, exchange);
  return x[0];
}

float maximum(Floats x) {
  for (const Ints& exchange : kExchanges) x = larger(x, __builtin_shuffle(x, exchange));
  return x[0];
}

// x in the lanes of the elements i to end, another value in the lanes after them.
Floats keep_before(int64_t end, int64_t i, Floats x, float beyond) {
  constexpr Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32_t here = end - i > kLanes ? kLanes : static_cast<int32_t>(end - i);
  return lanes < here ? x : broadcast(beyond);
}

// e^x for x of at most about 0, to about two units in the last place: 2^n e^r with |r| <= ln(2) / 2.
Floats exponential(Floats x) {
  x = x < -87.0f ? broadcast(-87.0f) : x;  // a comparison with NaN is false
  const Floats shifter = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x * 1.44269504f + shifter;
  const Floats n = shifted - shifter;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats series = broadcast(1.0f / 720.0f);
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const Ints power = ((Ints)shifted - (Ints)shifter + 127) << 23;
  return series * (Floats)power;
}

// Memory of this thread, kept between calls; its contents are undefined.
float* scratch(int which, int64_t floats) {
  static thread_local std::vector<float> memory[8];
  if (static_cast<int64_t>(memory[which].size()) < floats) memory[which].resize(floats);
  return memory[which].data();
}

}  // namespace
