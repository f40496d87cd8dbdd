// Low-rank adapters (Hu et al., 2021): shrink computes x A^T, expand adds h B^T. B lies transposed as [rank][out].
#pragma once

#include "kernels.h"
#include "lanes.h"

namespace lorikeet {
namespace {

template <typename T, int RANKS, int ROWS>
inline void shrink_tile(const T* a, const float* x, int64_t x_stride, int64_t width, float scaling, float* out,
                        int64_t out_stride) {
  Lanes sums[RANKS][ROWS];
  for (int k = 0; k < RANKS; k++) {
    for (int r = 0; r < ROWS; r++) sums[k][r] = zeros();
  }
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int k = 0; k < RANKS; k++) {
      const Lanes factors = load(a + k * width + i);
      for (int r = 0; r < ROWS; r++) sums[k][r] = multiply_add(factors, load(x + r * x_stride + i), sums[k][r]);
    }
  }
  if (const int64_t rest = width - whole) {
    for (int k = 0; k < RANKS; k++) {
      const Lanes factors = load_some(a + k * width + whole, rest);
      for (int r = 0; r < ROWS; r++) {
        sums[k][r] = multiply_add(factors, load_some(x + r * x_stride + whole, rest), sums[k][r]);
      }
    }
  }
  for (int k = 0; k < RANKS; k++) {
    for (int r = 0; r < ROWS; r++) out[r * out_stride + k] = scaling * sum(sums[k][r]);
  }
}

template <typename T, int RANKS>
inline void shrink_ranks(const T* a, const float* x, int64_t x_stride, int64_t num_rows, int64_t width, float scaling,
                         float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + 2 <= num_rows; r += 2) {
    shrink_tile<T, RANKS, 2>(a, x + r * x_stride, x_stride, width, scaling, out + r * out_stride, out_stride);
  }
  if (r < num_rows) shrink_tile<T, RANKS, 1>(a, x + r * x_stride, x_stride, width, scaling, out + r * out_stride, out_stride);
}

template <typename T>
inline void shrink_of(const T* a, const float* x, int64_t x_stride, int64_t num_rows, int64_t width, int64_t num_ranks,
                      float scaling, float* out, int64_t out_stride) {
  int64_t k = 0;
  for (; k + 4 <= num_ranks; k += 4) {
    shrink_ranks<T, 4>(a + k * width, x, x_stride, num_rows, width, scaling, out + k, out_stride);
  }
  for (; k < num_ranks; k++) {
    shrink_ranks<T, 1>(a + k * width, x, x_stride, num_rows, width, scaling, out + k, out_stride);
  }
}

inline void shrink(const void* a, Dtype dtype, const float* x, int64_t x_stride, int64_t num_rows, int64_t width,
                   int64_t num_ranks, float scaling, float* out, int64_t out_stride) {
  if (dtype == kFloat32) {
    shrink_of(static_cast<const float*>(a), x, x_stride, num_rows, width, num_ranks, scaling, out, out_stride);
  } else {
    shrink_of(static_cast<const uint16_t*>(a), x, x_stride, num_rows, width, num_ranks, scaling, out, out_stride);
  }
}

template <typename T>
inline void expand_of(const T* b, int64_t b_stride, int64_t count, int64_t num_ranks, const float* h, float* out) {
  constexpr int kWide = 4;
  int64_t c = 0;
  for (; c + kWide * kLanes <= count; c += kWide * kLanes) {
    Lanes sums[kWide];
    for (int j = 0; j < kWide; j++) sums[j] = zeros();
    for (int64_t k = 0; k < num_ranks; k++) {
      const Lanes factor = splat(h[k]);
      for (int j = 0; j < kWide; j++) sums[j] = multiply_add(factor, load(b + k * b_stride + c + j * kLanes), sums[j]);
    }
    for (int j = 0; j < kWide; j++) store(out + c + j * kLanes, add(load(out + c + j * kLanes), sums[j]));
  }
  for (; c < count; c += kLanes) {
    const int64_t n = count - c < kLanes ? count - c : kLanes;
    Lanes sum = zeros();
    for (int64_t k = 0; k < num_ranks; k++) sum = multiply_add(splat(h[k]), load_some(b + k * b_stride + c, n), sum);
    store_some(out + c, add(load_some(out + c, n), sum), n);
  }
}

inline void expand(const void* b, Dtype dtype, int64_t b_stride, int64_t count, int64_t num_ranks, const float* h,
                   float* out) {
  if (dtype == kFloat32) expand_of(static_cast<const float*>(b), b_stride, count, num_ranks, h, out);
  else expand_of(static_cast<const uint16_t*>(b), b_stride, count, num_ranks, h, out);
}

}  // namespace
}  // namespace lorikeet
