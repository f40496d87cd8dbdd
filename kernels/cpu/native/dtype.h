// Number formats of tensors, and conversions of float32 to bfloat16 and half, and back.
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

// Round to the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 0) {
    const float small = float(fraction) * (1.0f / (1 << 24));
    return sign ? -small : small;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Round to the nearest half, ties to even; a number that is too large becomes an infinity.
inline uint16_t to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // below 2^-14: multiples of 2^-24
    float positive;
    memcpy(&positive, &bits, 4);
    const float rounded = positive * float(1 << 24) + 8388608.0f;
    memcpy(&bits, &rounded, 4);
    return sign | uint16_t(bits - 0x4b000000);
  }
  return sign | uint16_t((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}

}  // namespace
}  // namespace lorikeet
