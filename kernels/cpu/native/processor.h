// The paths that this processor and its system can run.
#pragma once

#include "product.h"
#include "rows/kernels.h"

namespace lorikeet {

struct Path {
  const char* name;
  const Tile* tiles;  // by Kind
  QuantizeRow quantize_row;
  const RowKernels* rows;
};

constexpr int kMaxPaths = 4;

// Paths by speed, the slowest first. Returns how many there are: at least one, the plain path.
int processor_paths(const Path** paths);

// Use the first count paths alone, for comparisons; 0 for all.
void limit_paths(int count);

}  // namespace lorikeet
