// The root-mean-square norm of one row (Zhang and Sennrich, 2019).
#pragma once

#include "lanes.h"

namespace lorikeet {
namespace {

inline void norm(const float* x, const float* weight, float eps, int64_t width, float* out) {
  const int64_t whole = width / kLanes * kLanes, rest = width - whole;
  Lanes squares = zeros();
  for (int64_t i = 0; i < whole; i += kLanes) squares = multiply_add(load(x + i), load(x + i), squares);
  if (rest) {
    const Lanes last = load_some(x + whole, rest);
    squares = multiply_add(last, last, squares);
  }
  const Lanes factor = splat(1.0f / sqrtf(sum(squares) / float(width) + eps));
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, multiply(multiply(load(x + i), factor), load(weight + i)));
  if (rest) {
    const Lanes last = multiply(multiply(load_some(x + whole, rest), factor), load_some(weight + whole, rest));
    store_some(out + whole, last, rest);
  }
}

}  // namespace
}  // namespace lorikeet
