// The quantization of one row, compiled for several processors by the files that include this one. Everything is local
// to such a file: a linker that chose among several copies of one function might choose what a processor cannot run.
#pragma once

#include <math.h>
#include <string.h>

#include "../product.h"

namespace lorikeet {
namespace {

constexpr float kLeast = 1e-30f;           // groups whose largest number is below this are zeros
constexpr uint32_t kInfinity = 0x7f800000;
constexpr float kRounding = 12582912.0f;   // 1.5 * 2^23: added and taken away, it rounds to the nearest, ties to even

inline void quantize_group(const float* x, int16_t* values, float* scale, float* sum) {
  uint32_t largest = 0;
  for (int i = 0; i < kGroup; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float bound;
  memcpy(&bound, &largest, 4);
  const bool is_number = largest < kInfinity;
  const float factor = is_number && bound >= kLeast ? 32767.0f / bound : 0.0f;
  if (is_number) {
    for (int i = 0; i < kGroup; i++) values[i] = int16_t(int32_t((x[i] * factor + kRounding) - kRounding));
  } else {
    memset(values, 0, kGroup * sizeof *values);
  }
  int32_t total = 0;
  for (int i = 0; i < kGroup; i++) total += values[i];
  *scale = !is_number ? NAN : bound >= kLeast ? bound * (1.0f / 32767.0f) : 0.0f;
  *sum = *scale * float(total);
}

inline void quantize_row(const float* x, int64_t num_inputs, int16_t* values, float* scales, float* sums) {
  const int64_t whole = num_inputs / kGroup;
  for (int64_t g = 0; g < whole; g++) quantize_group(x + g * kGroup, values + g * kGroup, scales + g, sums + g);
  if (whole * kGroup < num_inputs) {
    float rest[kGroup] = {};
    memcpy(rest, x + whole * kGroup, (num_inputs - whole * kGroup) * sizeof(float));
    quantize_group(rest, values + whole * kGroup, scales + whole, sums + whole);
  }
}

}  // namespace
}  // namespace lorikeet
