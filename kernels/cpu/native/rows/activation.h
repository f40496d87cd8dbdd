// The gated activations of decoders (Shazeer, 2020): SwiGLU and GEGLU.
#pragma once

#include "kernels.h"
#include "lanes.h"

namespace lorikeet {
namespace {

inline Lanes silu(Lanes x) { return divide(x, add(splat(1.0f), exponential(subtract(zeros(), x)))); }

// Compute gelu by the approximation with tanh (Hendrycks and Gimpel, 2016): (1 + tanh(u)) / 2 = 1 - 1 / (e^2u + 1).
inline Lanes gelu(Lanes x) {
  const Lanes cube = multiply(multiply(x, x), x);
  const Lanes twice = multiply(splat(1.59576912f), multiply_add(splat(0.044715f), cube, x));
  return multiply(x, subtract(splat(1.0f), divide(splat(1.0f), add(exponential(twice), splat(1.0f)))));
}

inline void gate(const float* gate_up, int64_t width, Activation activation, float factor, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i < kLanes ? width - i : kLanes;
    const Lanes x = load_some(gate_up + i, n);
    const Lanes up = multiply(load_some(gate_up + width + i, n), splat(factor));
    store_some(out + i, multiply(activation == kSilu ? silu(x) : gelu(x), up), n);
  }
}

}  // namespace
}  // namespace lorikeet
