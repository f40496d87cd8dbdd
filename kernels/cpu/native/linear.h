// Products of rows with matrices of small integers: one matrix for all rows, or one of several for each row.
#pragma once

#include "dtype.h"
#include "processor.h"

namespace lorikeet {

// x [num_rows][num_inputs] and y [num_rows][num_outputs] of one dtype, rows x_stride and y_stride numbers apart.
// matrices [num_matrices], of one shape; counts: the rows of each, one after the other, num_rows in all.
// bias: num_outputs numbers in float32 for each matrix, or null. add: products are added to y, instead of replacing it.
struct Product {
  const Matrix* const* matrices;
  const int64_t* counts;
  int64_t num_matrices;
  const void* x;
  void* y;
  const float* bias;
  int64_t num_rows, x_stride, y_stride;
  Dtype dtype;
  bool add;
};

// Compute a product with at most num_threads threads. Returns false if there is no memory.
bool multiply(const Product& product, const Path& path, int num_threads);

}  // namespace lorikeet
