// The operations of a decoder beside its products, as one table of functions for each kind of processor.
//
// All numbers are in float32 but for cached keys and values and the factors of adapters, which have a dtype of their own.
// Nothing needs to be aligned. Every table gives the same bits, and those of a row depend on that row alone.
#pragma once

#include <cstdint>

#include "../dtype.h"

namespace lorikeet {

constexpr int64_t kCacheBlock = 16;  // positions that lie side by side in the cache

// The cache of one layer: for each block and head of keys and values first the keys [head_dim][16 positions], then the
// values [16 positions][padded_dim]. padded_dim: head_dim, rounded up to 16; what is beyond head_dim stays zero. All
// numbers are finite, so that a position that is not seen may be multiplied by 0.
struct CacheShape {
  int64_t num_heads, head_dim;
  Dtype dtype;
};

namespace {

inline int64_t padded_dim(const CacheShape& shape) { return (shape.head_dim + 15) / 16 * 16; }

// Return how many numbers one head of a block has, and a whole block.
inline int64_t head_size(const CacheShape& shape) { return kCacheBlock * (shape.head_dim + padded_dim(shape)); }
inline int64_t block_size(const CacheShape& shape) { return shape.num_heads * head_size(shape); }

// Return how many floats `attend` needs for pairs of a row and a head.
inline int64_t attention_floats(const CacheShape& shape, int64_t pairs) { return pairs * (padded_dim(shape) + 2); }

}  // namespace

// Consecutive positions of one sequence, and the query heads that share one head of keys and values.
// q: the first head of the first row, scaled already; heads are head_dim apart, rows q_stride. blocks: the blocks of
// the sequence. softcap c: scores s become c tanh(s / c); 0: they are not bounded. A position sees itself and the
// positions before it, at most `window` of them; 0: all.
struct AttentionTile {
  const float* q;
  int64_t q_stride, num_rows, group;
  int64_t first_position, window;
  float softcap;
  const void* cache;  // of the layer
  CacheShape shape;
  int64_t head;       // of keys and values
  const int32_t* blocks;
  int64_t num_blocks;  // that may be read
};

enum Activation : int32_t { kSilu = 0, kGelu = 1 };

struct RowKernels {
  // out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] for i below width; out may be x.
  void (*norm)(const float* x, const float* weight, float eps, int64_t width, float* out);

  // Rotate one head in place. cos and sin: half of head_dim numbers each.
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t head_dim);

  // Softmax over what each row sees: afterwards out holds [num_rows][group][padded_dim], of attention_floats numbers.
  void (*attend)(const AttentionTile& tile, float* out);

  // out[row][rank] = scaling * sum_i x[row][i] * a[rank][i]. a: [num_ranks][width], x_stride and out_stride apart.
  void (*shrink)(const void* a, Dtype dtype, const float* x, int64_t x_stride, int64_t num_rows, int64_t width,
                 int64_t num_ranks, float scaling, float* out, int64_t out_stride);

  // out[c] += sum_rank h[rank] * b[rank][c] for c below count. b: [num_ranks] rows, b_stride apart.
  void (*expand)(const void* b, Dtype dtype, int64_t b_stride, int64_t count, int64_t num_ranks, const float* h,
                 float* out);

  // out[i] = activation(gate_up[i]) * gate_up[width + i] * factor for i below width.
  void (*gate)(const float* gate_up, int64_t width, Activation activation, float factor, float* out);
};

extern const RowKernels row_kernels_plain;
#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2;
extern const RowKernels row_kernels_avx512;
#endif

}  // namespace lorikeet
