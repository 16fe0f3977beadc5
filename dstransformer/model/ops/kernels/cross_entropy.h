// Label-smoothed cross-entropy (section 5.4), alone and in R-Drop, and the best pieces of each row for beam search.
// The gradients with respect to the logits replace them.

#pragma once

#include "vectors.h"

namespace {

// A row of logits: the sum of exp(logit - largest), its logarithm with the largest added, and the sum of the logits.
struct Softmax {
  float mass, log_mass, total;
};

// Writes the logits in fp32, and exp(logit - largest) with zeros up to the next multiple of 16; both may be one memory.
template <class T>
Softmax softmax(const T* line, int64_t pieces, float* wide, float* masses) {
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
  Floats mass_lanes{};
  for (int64_t i = 0; i < round_up(pieces); i += kLanes) {
    const Floats mass = keep_before(pieces, i, exponential(load(wide + i) - most), 0.0f);
    store(mass, masses + i);
    mass_lanes += mass;
  }
  const float mass = sum(mass_lanes);
  return {mass, std::log(mass) + most, total};
}

template <class T>
void cross_entropy(T* logits, const int64_t* targets, int64_t rows, int64_t pieces, float epsilon, float* loss,
                   float* nll, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    T* line = logits + row * pieces;
    float* masses = scratch(0, round_up(pieces));
    const float at_target = widen(line[targets[row]]);
    const Softmax found = softmax(line, pieces, masses, masses);
    nll[row] = found.log_mass - at_target;
    loss[row] = (1.0f - epsilon) * nll[row] + epsilon * (found.log_mass - found.total / pieces);
    const float share = epsilon / pieces, factor = 1.0f / found.mass;
    const int64_t whole = pieces / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) store(load(masses + i) * factor - share, line + i);
    for (int64_t i = whole; i < pieces; ++i) narrow(masses[i] * factor - share, line + i);
    narrow(masses[targets[row]] * factor - share - (1.0f - epsilon), line + targets[row]);
  }
}

// Half the loss of R-Drop (Liang et al., 2021, equation 4): P and Q are the distributions of two passes.
template <class T>
void r_drop_cross_entropy(T* first, T* second, const int64_t* targets, int64_t rows, int64_t pieces, float epsilon,
                          float alpha, float* loss, float* nll, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    T *p_line = first + row * pieces, *q_line = second + row * pieces;
    const int64_t padded = round_up(pieces), target = targets[row];
    float *p_wide = scratch(0, padded), *q_wide = scratch(1, padded);
    float *p_masses = scratch(2, padded), *q_masses = scratch(3, padded);
    const Softmax p_found = softmax(p_line, pieces, p_wide, p_masses);
    const Softmax q_found = softmax(q_line, pieces, q_wide, q_masses);
    const float shift = p_found.log_mass - q_found.log_mass;
    Floats p_ratios{}, q_ratios{};
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Floats ratio = load(p_wide + i) - load(q_wide + i) - shift;  // log P - log Q
      p_ratios += load(p_masses + i) * ratio;
      q_ratios += load(q_masses + i) * ratio;
    }
    const float p_factor = 1.0f / p_found.mass, q_factor = 1.0f / q_found.mass;
    const float kl_pq = sum(p_ratios) * p_factor, kl_qp = -sum(q_ratios) * q_factor;
    const float log_masses = p_found.log_mass + q_found.log_mass;
    nll[row] = 0.5f * (log_masses - p_wide[target] - q_wide[target]);
    loss[row] = (1.0f - epsilon) * nll[row] +
                0.5f * epsilon * (log_masses - (p_found.total + q_found.total) / pieces) +
                0.25f * alpha * (kl_pq + kl_qp);
    const float share = epsilon / pieces, weight = 0.25f * alpha;
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Floats p = load(p_masses + i) * p_factor, q = load(q_masses + i) * q_factor;
      const Floats ratio = load(p_wide + i) - load(q_wide + i) - shift;
      store(0.5f * (p - share) + weight * (p * (ratio - kl_pq) + p - q), p_masses + i);
      store(0.5f * (q - share) + weight * (q - p - q * (ratio + kl_qp)), q_masses + i);
    }
    p_masses[target] -= 0.5f * (1.0f - epsilon);
    q_masses[target] -= 0.5f * (1.0f - epsilon);
    write_row(p_masses, pieces, 1.0f, p_line);
    write_row(q_masses, pieces, 1.0f, q_line);
  }
}

// The largest `count` of a row so far, best first; among equals the first ones.
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

}  // namespace
