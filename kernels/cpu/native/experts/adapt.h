// The products of adapters on experts, as `kernels.cpu.experts` passes them: plain structs of 8-byte fields.
#pragma once

#include "../processor.h"

namespace lorikeet {

constexpr int64_t kMostExpertProjections = 2;  // gate and up, or down

// An adapter on one group of projections: a [experts][all ranks][width], the ranks of one projection after those of the
// other; b [experts][rank][num_outputs] of each projection. An adapter with rank 0 adds nothing to a projection.
struct ExpertFactors {
  const void* a;
  const void* b[kMostExpertProjections];
  int64_t rank[kMostExpertProjections];
  double scaling[kMostExpertProjections];
  int64_t dtype;  // of a and b
};

// Rows of tokens, those of one expert after the other: counts [num_experts], num_rows in all. tokens [num_rows]: the token
// of each row. adapters: the adapter of each token, -1 for none; factors [num_adapters].
// x [num_rows][width] and y of one dtype, rows x_stride and y_stride numbers apart. The adapters' products are added to
// y, num_outputs of each projection side by side.
struct AdaptedExperts {
  const int64_t *counts, *tokens, *adapters;
  const ExpertFactors* factors;
  int64_t num_experts, num_rows, num_adapters;
  const void* x;
  void* y;
  int64_t x_stride, y_stride, width, dtype, num_projections;
  int64_t num_outputs[kMostExpertProjections];
};

// Add the adapters' products to y, with at most num_threads threads. Returns false if there is no memory, or there are
// too many ranks. Factors, and what they point to, may be freed after `wait_for_helpers`.
bool adapt_experts(const AdaptedExperts& experts, const Path& path, int num_threads);

}  // namespace lorikeet
