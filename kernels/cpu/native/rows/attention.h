// Attention over the paged cache in place, with the online softmax of FlashAttention (Dao et al., 2022).
//
// A row goes through the cache by blocks of 16 positions, from the first that it sees, in one order: so its bits depend
// neither on the other rows of the tile nor on whether it is a decode or a part of a prompt.
#pragma once

#include <math.h>

#include "kernels.h"
#include "lanes.h"

namespace lorikeet {
namespace {

// The running sums of one query: the largest score so far, the sum of weights relative to it, and the weighted sum of
// values [padded_dim].
struct Query {
  const float* q;
  float *largest, *total, *values;
  int64_t first, last;  // positions of the block that it sees
};

// Bound scores: c tanh(s / c), where tanh(u) = 1 - 2 / (e^2u + 1).
inline Lanes bounded(Lanes scores, float cap) {
  const Lanes power = exponential(multiply(scores, splat(2.0f / cap)));
  return subtract(splat(cap), divide(splat(2.0f * cap), add(power, splat(1.0f))));
}

template <typename T, int N>
inline void attend_block(const T* keys, const T* values, int64_t head_dim, int64_t padded, float softcap,
                         const Query* queries) {
  Lanes even[N], odd[N];
  for (int n = 0; n < N; n++) even[n] = odd[n] = zeros();
  for (int64_t d = 0; d < head_dim; d += 2) {
    const Lanes one = load(keys + d * kCacheBlock), two = load(keys + (d + 1) * kCacheBlock);
    for (int n = 0; n < N; n++) {
      even[n] = multiply_add(splat(queries[n].q[d]), one, even[n]);
      odd[n] = multiply_add(splat(queries[n].q[d + 1]), two, odd[n]);
    }
  }
  float weights[N][kLanes], shrinks[N];
  for (int n = 0; n < N; n++) {
    const Query& query = queries[n];
    const Lanes products = add(even[n], odd[n]);
    const Lanes scores = keep(softcap ? bounded(products, softcap) : products, query.first, query.last, -INFINITY);
    const float in_block = greatest(scores), before = *query.largest;
    const float largest = in_block > before ? in_block : before;
    const Lanes exponentials = exponential(subtract(scores, splat(largest)));
    store(weights[n], keep(exponentials, query.first, query.last, 0.0f));
    shrinks[n] = exponential(before - largest);
    *query.total = __builtin_fmaf(*query.total, shrinks[n], sum(load(weights[n])));
    *query.largest = largest;
  }
  for (int64_t c = 0; c < padded; c += kLanes) {
    Lanes sums[N];
    for (int n = 0; n < N; n++) sums[n] = multiply(load(queries[n].values + c), splat(shrinks[n]));
    for (int j = 0; j < kCacheBlock; j++) {
      const Lanes value = load(values + j * padded + c);
      for (int n = 0; n < N; n++) sums[n] = multiply_add(splat(weights[n][j]), value, sums[n]);
    }
    for (int n = 0; n < N; n++) store(queries[n].values + c, sums[n]);
  }
}

// Find the positions [first, last) of a block that a row sees; none where first >= last.
inline void visible(const AttentionTile& tile, int64_t row, int64_t block, int64_t* first, int64_t* last) {
  const int64_t position = tile.first_position + row, start = block * kCacheBlock;
  const int64_t least = tile.window && position >= tile.window ? position - tile.window + 1 : 0;
  *first = least > start ? least - start : 0;
  *last = position + 1 - start < kCacheBlock ? position + 1 - start : kCacheBlock;
}

template <typename T>
inline void attend_of(const AttentionTile& tile, float* out) {
  constexpr int kTogether = 4;
  const int64_t head_dim = tile.shape.head_dim, padded = padded_dim(tile.shape);
  const int64_t pairs = tile.num_rows * tile.group;
  float* largest = out + pairs * padded;
  float* totals = largest + pairs;
  memset(out, 0, pairs * padded * sizeof(float));
  for (int64_t p = 0; p < pairs; p++) largest[p] = -INFINITY, totals[p] = 0.0f;
  const int64_t end = (tile.first_position + tile.num_rows - 1) / kCacheBlock + 1;
  int64_t block = tile.window && tile.first_position >= tile.window ? tile.first_position - tile.window + 1 : 0;
  for (block /= kCacheBlock; block < end; block++) {
    const int64_t where = tile.blocks[block < tile.num_blocks ? block : tile.num_blocks - 1];
    const T* keys = static_cast<const T*>(tile.cache) + where * block_size(tile.shape) + tile.head * head_size(tile.shape);
    Query queries[kTogether];
    int count = 0;
    for (int64_t p = 0; p <= pairs; p++) {
      if (p < pairs) {
        const int64_t row = p / tile.group;
        Query& query = queries[count];
        visible(tile, row, block, &query.first, &query.last);
        if (query.first >= query.last) continue;
        query.q = tile.q + row * tile.q_stride + p % tile.group * head_dim;
        query.largest = largest + p, query.total = totals + p, query.values = out + p * padded;
        if (++count < kTogether && p + 1 < pairs) continue;
      }
      const T* values = keys + head_dim * kCacheBlock;
      if (count == 4) attend_block<T, 4>(keys, values, head_dim, padded, tile.softcap, queries);
      else if (count == 3) attend_block<T, 3>(keys, values, head_dim, padded, tile.softcap, queries);
      else if (count == 2) attend_block<T, 2>(keys, values, head_dim, padded, tile.softcap, queries);
      else if (count == 1) attend_block<T, 1>(keys, values, head_dim, padded, tile.softcap, queries);
      count = 0;
    }
  }
  for (int64_t p = 0; p < pairs; p++) {
    const Lanes factor = splat(1.0f / totals[p]);
    for (int64_t c = 0; c < padded; c += kLanes) store(out + p * padded + c, multiply(load(out + p * padded + c), factor));
  }
}

inline void attend(const AttentionTile& tile, float* out) {
  if (tile.shape.dtype == kFloat32) attend_of<float>(tile, out);
  else attend_of<uint16_t>(tile, out);
}

}  // namespace
}  // namespace lorikeet
