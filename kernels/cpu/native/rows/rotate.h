// Rotary position embedding of one head, in the rotate-half layout (Su et al., 2021).
#pragma once

#include "lanes.h"

namespace lorikeet {
namespace {

inline void rotate(float* x, const float* cos, const float* sin, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    const Lanes first = load_some(x + i, n), second = load_some(x + half + i, n);
    const Lanes c = load_some(cos + i, n), s = load_some(sin + i, n);
    store_some(x + i, subtract(multiply(first, c), multiply(second, s)), n);
    store_some(x + half + i, add(multiply(second, c), multiply(first, s)), n);
  }
}

}  // namespace
}  // namespace lorikeet
