// Training and decoding on a CPU in one or two passes over memory, where PyTorch takes many.
//
// Tensors come as pointers to fp32 or bf16 (16 bits, the upper half of an fp32). All arithmetic is in fp32. Loops run
// on vectors of 16 floats, which the compiler maps to the processor's. Results do not depend on the number of
// threads, except for the order in which rows are summed into the gradients of biases and of a norm's weights.

#include "attend_path.h"
#include "attention.h"
#include "bias_relu.h"
#include "cross_entropy.h"
#include "residual_norm.h"
#include "weight_gradient.h"

// Every function but weight_gradient exists for fp32 and for bf16. Sizes count elements; `threads` is at least 1.
#define FOR_BOTH(DEFINE) DEFINE(fp32, float) DEFINE(bf16, bf16)

#define RESIDUAL_NORM(NAME, T) \
  extern "C" void residual_norm_##NAME(const T* x, const T* y, const T* gain, const T* bias, int64_t rows, \
                                       int64_t width, float eps, uint64_t seed, uint32_t threshold, float scale, \
                                       T* out, T* summed, float* mean, float* rstd, int threads) { \
    residual_norm<T>(x, y, gain, bias, rows, width, eps, {seed, threshold, scale}, out, summed, mean, rstd, threads); \
  } \
  extern "C" void residual_norm_backward_##NAME( \
      const T* grad, const T* summed, const T* gain, const float* mean, const float* rstd, int64_t rows, \
      int64_t width, uint64_t seed, uint32_t threshold, float scale, T* grad_x, T* grad_y, float* grad_gain, \
      float* grad_bias, int threads) { \
    residual_norm_backward<T>(grad, summed, gain, mean, rstd, rows, width, {seed, threshold, scale}, grad_x, grad_y, \
                              grad_gain, grad_bias, threads); \
  }

#define BIAS_RELU(NAME, T) \
  extern "C" void bias_relu_backward_##NAME(const T* grad, const T* out, int64_t rows, int64_t width, T* passed, \
                                            float* sums, int threads) { \
    bias_relu_backward<T>(grad, out, rows, width, passed, sums, threads); \
  }

#define CROSS_ENTROPY(NAME, T) \
  extern "C" void cross_entropy_##NAME(T* logits, const int64_t* targets, int64_t rows, int64_t pieces, \
                                       float epsilon, float* loss, float* nll, int threads) { \
    cross_entropy<T>(logits, targets, rows, pieces, epsilon, loss, nll, threads); \
  } \
  extern "C" void r_drop_cross_entropy_##NAME(T* first, T* second, const int64_t* targets, int64_t rows, \
                                              int64_t pieces, float epsilon, float alpha, float* loss, float* nll, \
                                              int threads) { \
    r_drop_cross_entropy<T>(first, second, targets, rows, pieces, epsilon, alpha, loss, nll, threads); \
  }

#define BEST_PIECES(NAME, T) \
  extern "C" void best_pieces_##NAME(const T* logits, int64_t rows, int64_t pieces, int64_t first, int64_t end, \
                                     int64_t count, float* scores, int64_t* places, float* log_masses, int threads) { \
    best_pieces<T>(logits, rows, pieces, first, end, count, scores, places, log_masses, threads); \
  }

#define ATTEND_PATH(NAME, T) \
  extern "C" void attend_path_##NAME(const T* const* past, const int32_t* path, int64_t rows, int64_t length, \
                                     int64_t heads, int64_t d_k, int64_t d_v, T* out, int threads) { \
    attend_path<T>(past, path, rows, length, heads, d_k, d_v, out, threads); \
  }

#define ATTENTION(NAME, T) \
  extern "C" void attention_##NAME(const T* q, int64_t q_stride, const T* k, const T* v, int64_t kv_stride, \
                                   const int32_t* q_cu, const int32_t* k_begin, const int32_t* k_end, \
                                   int64_t sentences, int64_t heads, int64_t d_k, int64_t d_v, int causal, T* out, \
                                   float* log_masses, int threads) { \
    attention<T>({q, q_stride, heads, d_k}, {k, kv_stride, heads, d_k}, {v, kv_stride, heads, d_v}, q_cu, k_begin, \
                 k_end, sentences, causal, {out, heads * d_v, heads, d_v}, log_masses, threads); \
  } \
  extern "C" void attention_backward_##NAME( \
      const T* grad, const T* q, int64_t q_stride, const T* k, const T* v, int64_t kv_stride, \
      const float* log_masses, const int32_t* q_cu, const int32_t* k_begin, const int32_t* k_end, \
      int64_t sentences, int64_t heads, int64_t d_k, int64_t d_v, int causal, T* grad_q, T* grad_k, T* grad_v, \
      int threads) { \
    attention_backward<T>({grad, heads * d_v, heads, d_v}, {q, q_stride, heads, d_k}, {k, kv_stride, heads, d_k}, \
                          {v, kv_stride, heads, d_v}, log_masses, q_cu, k_begin, k_end, sentences, causal, \
                          {grad_q, q_stride, heads, d_k}, {grad_k, kv_stride, heads, d_k}, \
                          {grad_v, kv_stride, heads, d_v}, threads); \
  }

FOR_BOTH(RESIDUAL_NORM)
FOR_BOTH(BIAS_RELU)
FOR_BOTH(CROSS_ENTROPY)
FOR_BOTH(BEST_PIECES)
FOR_BOTH(ATTEND_PATH)
FOR_BOTH(ATTENTION)

extern "C" void weight_gradient_fp32(const float* grad, const float* x, int64_t rows, int64_t outs, int64_t ins,
                                     float* result, int threads) {
  weight_gradient(grad, x, rows, outs, ins, result, threads);
}
