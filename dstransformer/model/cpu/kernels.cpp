// Training on a CPU: what PyTorch would compute in many passes over memory, in one or two.
//
// Tensors come as pointers to fp32 or bf16 (16 bits, the upper half of an fp32). All arithmetic is in fp32. Loops run
// on vectors of 16 floats, which the compiler maps to what the processor has. Results do not depend on the number of
// threads, except for the order in which rows are summed into the gradients of a norm's weights.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
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

// To the nearest, ties to even; what is not a number stays so.
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

// The two halves of a vector, exchanged at four scales: what is combined after each meets every lane.
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

// x in the lanes of the elements i to end, another value in those beyond.
Floats keep_before(int64_t end, int64_t i, Floats x, float beyond) {
  constexpr Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32_t here = end - i > kLanes ? kLanes : static_cast<int32_t>(end - i);
  return lanes < here ? x : broadcast(beyond);
}

// e^x for x of at most about 0, to about two units in the last place: 2^n e^r with |r| <= ln(2) / 2.
Floats exponential(Floats x) {
  x = x < -87.0f ? broadcast(-87.0f) : x;  // a comparison with what is not a number is false
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

// Memory of this thread, kept between calls; what it holds is undefined.
float* scratch(int which, int64_t floats) {
  static thread_local std::vector<float> memory[8];
  if (static_cast<int64_t>(memory[which].size()) < floats) memory[which].resize(floats);
  return memory[which].data();
}

// ---- Dropout, residual connection and layer norm -------------------------------------------------------------------

// SplitMix64 (Steele, Lea and Flood, 2014) on a counter: four decisions of 16 bits a word.
uint64_t random_word(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Dropout {
  uint64_t seed;
  uint32_t threshold;  // of 65536: the share of what is dropped
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

// ---- Label-smoothed cross-entropy ----------------------------------------------------------------------------------

template <class T>
void cross_entropy(T* logits, const int64_t* targets, int64_t rows, int64_t pieces, float epsilon, float* loss,
                   float* nll, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    T* line = logits + row * pieces;
    float* wide = scratch(0, round_up(pieces));
    const int64_t whole = pieces / kLanes * kLanes;
    Floats most_lanes = broadcast(-INFINITY), total_lanes{};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Floats x = load(line + i);
      store(x, wide + i);
      most_lanes = larger(most_lanes, x);
      total_lanes += x;
    }
    float most = maximum(most_lanes), total = sum(total_lanes);
    for (int64_t i = whole; i < pieces; ++i) {
      wide[i] = widen(line[i]);
      most = wide[i] > most ? wide[i] : most;
      total += wide[i];
    }
    for (int64_t i = pieces; i < round_up(pieces); ++i) wide[i] = most;
    const float at_target = wide[targets[row]];
    Floats masses{};
    for (int64_t i = 0; i < round_up(pieces); i += kLanes) {
      const Floats mass = keep_before(pieces, i, exponential(load(wide + i) - most), 0.0f);
      store(mass, wide + i);
      masses += mass;
    }
    const float mass = sum(masses), log_mass = std::log(mass) + most;
    nll[row] = log_mass - at_target;
    loss[row] = (1.0f - epsilon) * nll[row] + epsilon * (log_mass - total / pieces);
    const float share = epsilon / pieces, factor = 1.0f / mass;
    for (int64_t i = 0; i < whole; i += kLanes) store(load(wide + i) * factor - share, line + i);
    for (int64_t i = whole; i < pieces; ++i) narrow(wide[i] * factor - share, line + i);
    narrow(wide[targets[row]] * factor - share - (1.0f - epsilon), line + targets[row]);
  }
}

// ---- The best pieces of each row, for beam search --------------------------------------------------------------------

// The largest `count` of a row so far, best first; of equals the first.
struct Best {
  float* scores;
  int64_t* places;
  int64_t count;

  void offer(float score, int64_t place) const {
    if (!(score > scores[count - 1])) return;
    int64_t rank = count - 1;
    for (; rank > 0 && score > scores[rank - 1]; --rank) {
      scores[rank] = scores[rank - 1];
      places[rank] = places[rank - 1];
    }
    scores[rank] = score;
    places[rank] = place;
  }
};

template <class T>
void best_pieces(const T* logits, int64_t rows, int64_t pieces, int64_t first, int64_t end, int64_t count,
                 float* scores, int64_t* places, float* log_masses, int threads) {
  constexpr int64_t kBlock = 4 * kLanes;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t padded = (pieces + kBlock - 1) / kBlock * kBlock;
    float* wide = scratch(0, padded);
    read_row(logits + row * pieces, pieces, 1.0f, wide);
    for (int64_t i = pieces; i < padded; ++i) wide[i] = -INFINITY;
    const Best best{scores + row * count, places + row * count, count};
    for (int64_t rank = 0; rank < count; ++rank) {
      best.scores[rank] = -INFINITY;
      best.places[rank] = first;
    }
    Floats most_lanes = broadcast(-INFINITY);
    for (int64_t i = 0; i < padded; i += kBlock) {
      const Floats block = larger(larger(load(wide + i), load(wide + i + kLanes)),
                                  larger(load(wide + i + 2 * kLanes), load(wide + i + 3 * kLanes)));
      most_lanes = larger(most_lanes, block);
      if (maximum(block) > best.scores[count - 1])
        for (int64_t j = i > first ? i : first; j < i + kBlock && j < end; ++j) best.offer(wide[j], j);
    }
    const float most = maximum(most_lanes);
    Floats masses{};
    for (int64_t i = 0; i < padded; i += kLanes)
      masses += keep_before(pieces, i, exponential(load(wide + i) - most), 0.0f);
    log_masses[row] = std::log(sum(masses)) + most;
  }
}

// ---- Attention within packed sentences -----------------------------------------------------------------------------

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

// All rows by V vectors: eight or four rows at a time keep enough sums in flight, then what is left.
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
  for (; i + 4 * kLanes <= columns; i += 4 * kLanes) panel<4>(rows, depth, a, a_row, a_column, b + i, b_row, c + i, c_row);
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
      for (int stage = 0; stage < 4; ++stage) {  // each interleaves lines that are eight apart
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
  int64_t width;  // of a head

  // A sentence, times a factor, as (heads, tokens, width rounded up) in fp32; along its rows, as they lie in memory.
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

// A row of scores becomes its softmax over the first `visible` of `keys`; returns the logarithm of the mass.
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

// A row of scores becomes its softmax again, and a row of gradients of weights that of the scores.
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

template <class T>
void attention(Packed<const T> q, Packed<const T> k, Packed<const T> v, const int32_t* q_cu, const int32_t* k_cu,
               int64_t sentences, bool causal, Packed<T> out, float* log_masses, int threads) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(q.width));
  const int64_t heads = q.heads, key_width = round_up(q.width), value_width = round_up(v.width);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t sentence = 0; sentence < sentences; ++sentence) {
    const int64_t first = q_cu[sentence], queries = q_cu[sentence + 1] - first;
    const int64_t k_first = k_cu[sentence], keys = k_cu[sentence + 1] - k_first, padded = round_up(keys);
    float* wide_q = scratch(0, heads * queries * key_width);
    float* wide_k = scratch(1, heads * keys * key_width);
    float* wide_v = scratch(2, heads * keys * value_width);
    float* results = scratch(3, heads * queries * value_width);
    float* turned = scratch(4, key_width * padded);
    float* weights = scratch(5, queries * padded);
    q.read(first, queries, scale, wide_q);
    k.read(k_first, keys, 1.0f, wide_k);
    v.read(k_first, keys, 1.0f, wide_v);
    for (int64_t head = 0; head < heads; ++head) {
      const float* head_q = wide_q + head * queries * key_width;
      const float* head_v = wide_v + head * keys * value_width;
      transpose(wide_k + head * keys * key_width, keys, q.width, turned);
      product(queries, padded, q.width, head_q, key_width, 1, turned, padded, weights, padded);
      for (int64_t i = 0; i < queries; ++i)
        log_masses[(first + i) * heads + head] = softmax(weights + i * padded, causal ? i + 1 : keys, padded);
      float* result = results + head * queries * value_width;
      product(queries, value_width, keys, weights, padded, 1, head_v, value_width, result, value_width);
    }
    out.write(results, first, queries, 1.0f);
  }
}

template <class T>
void attention_backward(Packed<const T> grad, Packed<const T> q, Packed<const T> k, Packed<const T> v,
                        const float* log_masses, const int32_t* q_cu, const int32_t* k_cu, int64_t sentences,
                        bool causal, Packed<T> grad_q, Packed<T> grad_k, Packed<T> grad_v, int threads) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(q.width));
  const int64_t heads = q.heads, key_width = round_up(q.width), value_width = round_up(v.width);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t sentence = 0; sentence < sentences; ++sentence) {
    const int64_t first = q_cu[sentence], queries = q_cu[sentence + 1] - first;
    const int64_t k_first = k_cu[sentence], keys = k_cu[sentence + 1] - k_first, padded = round_up(keys);
    // The gradients take the places of what they are the gradients of, a head at a time.
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
        softmax_backward(weights + i * padded, slopes + i * padded, log_masses[(first + i) * heads + head],
                         causal ? i + 1 : keys, padded);
      product(keys, value_width, queries, weights, 1, padded, head_grad, value_width, head_v, value_width);
      product(keys, key_width, queries, slopes, 1, padded, head_q, key_width, of_keys, key_width);
      product(queries, key_width, keys, slopes, padded, 1, head_k, key_width, head_q, key_width);
      std::memcpy(head_k, of_keys, keys * key_width * sizeof(float));
    }
    grad_q.write(wide_q, first, queries, scale);
    grad_k.write(wide_k, k_first, keys, 1.0f);
    grad_v.write(wide_v, k_first, keys, 1.0f);
  }
}

}  // namespace

// Every function comes for fp32 and for bf16. Sizes count elements; `threads` is at least 1.
#define FOR_BOTH(DEFINE) DEFINE(fp32, float) DEFINE(bf16, bf16)

#define RESIDUAL_NORM(NAME, T)                                                                                        \
  extern "C" void residual_norm_##NAME(const T* x, const T* y, const T* gain, const T* bias, int64_t rows,            \
                                       int64_t width, float eps, uint64_t seed, uint32_t threshold, float scale,      \
                                       T* out, T* summed, float* mean, float* rstd, int threads) {                    \
    residual_norm<T>(x, y, gain, bias, rows, width, eps, {seed, threshold, scale}, out, summed, mean, rstd, threads); \
  }                                                                                                                   \
  extern "C" void residual_norm_backward_##NAME(                                                                      \
      const T* grad, const T* summed, const T* gain, const float* mean, const float* rstd, int64_t rows,              \
      int64_t width, uint64_t seed, uint32_t threshold, float scale, T* grad_x, T* grad_y, float* grad_gain,          \
      float* grad_bias, int threads) {                                                                                \
    residual_norm_backward<T>(grad, summed, gain, mean, rstd, rows, width, {seed, threshold, scale}, grad_x, grad_y,  \
                              grad_gain, grad_bias, threads);                                                         \
  }

#define CROSS_ENTROPY(NAME, T)                                                                                       \
  extern "C" void cross_entropy_##NAME(T* logits, const int64_t* targets, int64_t rows, int64_t pieces,              \
                                       float epsilon, float* loss, float* nll, int threads) {                        \
    cross_entropy<T>(logits, targets, rows, pieces, epsilon, loss, nll, threads);                                    \
  }

#define BEST_PIECES(NAME, T)                                                                                         \
  extern "C" void best_pieces_##NAME(const T* logits, int64_t rows, int64_t pieces, int64_t first, int64_t end,      \
                                     int64_t count, float* scores, int64_t* places, float* log_masses, int threads) {\
    best_pieces<T>(logits, rows, pieces, first, end, count, scores, places, log_masses, threads);                    \
  }

#define ATTENTION(NAME, T)                                                                                           \
  extern "C" void attention_##NAME(const T* q, int64_t q_stride, const T* k, const T* v, int64_t kv_stride,          \
                                   const int32_t* q_cu, const int32_t* k_cu, int64_t sentences, int64_t heads,       \
                                   int64_t d_k, int64_t d_v, int causal, T* out, float* log_masses, int threads) {   \
    attention<T>({q, q_stride, heads, d_k}, {k, kv_stride, heads, d_k}, {v, kv_stride, heads, d_v}, q_cu, k_cu,      \
                 sentences, causal, {out, heads * d_v, heads, d_v}, log_masses, threads);                            \
  }                                                                                                                  \
  extern "C" void attention_backward_##NAME(                                                                         \
      const T* grad, const T* q, int64_t q_stride, const T* k, const T* v, int64_t kv_stride,                        \
      const float* log_masses, const int32_t* q_cu, const int32_t* k_cu, int64_t sentences, int64_t heads,           \
      int64_t d_k, int64_t d_v, int causal, T* grad_q, T* grad_k, T* grad_v, int threads) {                          \
    attention_backward<T>({grad, heads * d_v, heads, d_v}, {q, q_stride, heads, d_k}, {k, kv_stride, heads, d_k},    \
                          {v, kv_stride, heads, d_v}, log_masses, q_cu, k_cu, sentences, causal,                     \
                          {grad_q, q_stride, heads, d_k}, {grad_k, kv_stride, heads, d_k},                           \
                          {grad_v, kv_stride, heads, d_v}, threads);                                                 \
  }

FOR_BOTH(RESIDUAL_NORM)
FOR_BOTH(CROSS_ENTROPY)
FOR_BOTH(BEST_PIECES)
FOR_BOTH(ATTENTION)
