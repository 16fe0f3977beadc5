// Label-smoothed cross-entropy (section 5.4), and the best pieces of each row for beam search.

#pragma once

#include "vectors.h"

namespace {

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
