// Number formats of tensors, and the way from float32 to bfloat16 and back.
#pragma once

#include <string.h>

#include <cstdint>

namespace lorikeet {

enum Dtype : int32_t { kFloat32 = 0, kBfloat16 = 1 };

namespace {

inline int64_t bytes_of(Dtype dtype) { return dtype == kFloat32 ? 4 : 2; }

inline float from_bfloat16(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace
}  // namespace lorikeet
