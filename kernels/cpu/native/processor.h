// The paths that this processor and its system can run.
#pragma once

#include "int8.h"
#include "rows/kernels.h"

namespace lorikeet {

struct Path {
  const char* name;
  Tile tile;
  void (*quantize_row)(const float* x, int64_t num_inputs, int16_t* values, float* scales);
  const RowKernels* rows;
};

constexpr int kMaxPaths = 4;

// Paths by speed, the slowest first. Returns how many there are: at least one, the plain path.
int processor_paths(const Path** paths);

// Use the first count paths alone, for comparisons; 0 for all.
void limit_paths(int count);

}  // namespace lorikeet
