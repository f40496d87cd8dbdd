// The product of some rows with a matrix of small integers.
#pragma once

#include "dtype.h"
#include "processor.h"

namespace lorikeet {

// x [num_rows][num_inputs] and y [num_rows][num_outputs] of one dtype, rows x_stride and y_stride numbers apart.
// bias: num_outputs numbers in float32, or null. add: the product is added to y, instead of replacing it.
struct Product {
  const Matrix* matrix;
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
