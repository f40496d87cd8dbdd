// Sixteen numbers in float32 that are computed side by side, with the same bits on every processor.
//
// Compiled by each file that includes it for that file's processors: AVX512 in one register, AVX2 in two, a loop
// elsewhere. A sum over the lanes is made in one order: i and i + 8, then i + 4, i + 2, i + 1.
#pragma once

#include <math.h>
#include <string.h>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lorikeet {
namespace {

constexpr int64_t kLanes = 16;

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};

inline __mmask16 first_lanes(int64_t n) { return __mmask16((1u << n) - 1); }

inline Lanes splat(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes load(const float* x) { return {_mm512_loadu_ps(x)}; }
inline Lanes widened(__m256i halves) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))}; }
inline Lanes load(const uint16_t* x) { return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))); }
// Load the first n numbers, and zeros in the other lanes.
inline Lanes load_some(const float* x, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), x)}; }
inline Lanes load_some(const uint16_t* x, int64_t n) { return widened(_mm256_maskz_loadu_epi16(first_lanes(n), x)); }
inline void store(float* x, Lanes a) { _mm512_storeu_ps(x, a.v); }
inline void store_some(float* x, Lanes a, int64_t n) { _mm512_mask_storeu_ps(x, first_lanes(n), a.v); }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes subtract(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes multiply(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes divide(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Return a where it is greater, else b, also where one is NaN.
inline Lanes greater(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes less(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
// Return lanes [first, last) of a, and `other` in all other lanes.
inline Lanes keep(Lanes a, int64_t first, int64_t last, float other) {
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), first_lanes(last) & ~first_lanes(first), a.v)};
}
// Return 2 to the power of the integer in the lowest bits of each lane.
inline Lanes power_of_two(Lanes a) {
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23), _mm512_set1_epi32(0x3f800000)))};
}
inline __m256 upper_half(Lanes a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)); }
inline __m256 lower_half(Lanes a) { return _mm512_castps512_ps256(a.v); }

#elif defined(__AVX2__)

struct Lanes {
  __m256 low, high;
};

inline Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
inline __m256 widened(const uint16_t* x) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Lanes load(const uint16_t* x) { return {widened(x), widened(x + 8)}; }
template <typename T>
inline Lanes load_some(const T* x, int64_t n) {
  T some[kLanes] = {};
  memcpy(some, x, n * sizeof(T));
  return load(some);
}
inline void store(float* x, Lanes a) { _mm256_storeu_ps(x, a.low), _mm256_storeu_ps(x + 8, a.high); }
inline void store_some(float* x, Lanes a, int64_t n) {
  float all[kLanes];
  store(all, a);
  memcpy(x, all, n * sizeof(float));
}
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes subtract(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes multiply(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes divide(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes greater(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes less(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline __m256 kept(__m256 a, int64_t first, int64_t last, float other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(int(last)), lane);
  const __m256i within = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(int(first)), lane), below);
  return _mm256_blendv_ps(_mm256_set1_ps(other), a, _mm256_castsi256_ps(within));
}
inline Lanes keep(Lanes a, int64_t first, int64_t last, float other) {
  return {kept(a.low, first, last, other), kept(a.high, first - 8, last - 8, other)};
}
inline __m256 power(__m256 a) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(a), 23), _mm256_set1_epi32(0x3f800000)));
}
inline Lanes power_of_two(Lanes a) { return {power(a.low), power(a.high)}; }
inline __m256 upper_half(Lanes a) { return a.high; }
inline __m256 lower_half(Lanes a) { return a.low; }

#else

struct Lanes {
  float v[kLanes];
};

template <typename F>
inline Lanes each(F&& f) {
  Lanes out;
  for (int i = 0; i < kLanes; i++) out.v[i] = f(i);
  return out;
}
inline float widened(float x) { return x; }
inline float widened(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline Lanes splat(float x) { return each([&](int) { return x; }); }
template <typename T>
inline Lanes load(const T* x) { return each([&](int i) { return widened(x[i]); }); }
template <typename T>
inline Lanes load_some(const T* x, int64_t n) { return each([&](int i) { return i < n ? widened(x[i]) : 0.0f; }); }
inline void store(float* x, Lanes a) { memcpy(x, a.v, sizeof a.v); }
inline void store_some(float* x, Lanes a, int64_t n) { memcpy(x, a.v, n * sizeof(float)); }
inline Lanes add(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Lanes subtract(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Lanes multiply(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Lanes divide(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Lanes greater(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline Lanes less(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline Lanes keep(Lanes a, int64_t first, int64_t last, float other) {
  return each([&](int i) { return i >= first && i < last ? a.v[i] : other; });
}
inline Lanes power_of_two(Lanes a) {
  return each([&](int i) {
    uint32_t bits;
    memcpy(&bits, &a.v[i], 4);
    bits = (bits << 23) + 0x3f800000;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  });
}

#endif

#if defined(__AVX2__)

inline float sum(Lanes a) {
  const __m256 eight = _mm256_add_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float greatest(Lanes a) {
  const __m256 eight = _mm256_max_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#else

inline float sum(Lanes a) {
  for (int step = kLanes / 2; step; step /= 2) {
    for (int i = 0; i < step; i++) a.v[i] = a.v[i] + a.v[i + step];
  }
  return a.v[0];
}
inline float greatest(Lanes a) {
  for (int step = kLanes / 2; step; step /= 2) {
    for (int i = 0; i < step; i++) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  }
  return a.v[0];
}

#endif

inline Lanes zeros() { return splat(0.0f); }

// Return e to the power of each lane, to about one unit of the last place; below -87 about 1e-38, above 88 about 1e38.
inline Lanes exponential(Lanes x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: added, it leaves the nearest integer in the lowest bits
  x = less(splat(88.0f), greater(splat(-87.0f), x));
  const Lanes shifted = multiply_add(x, splat(1.44269504f), splat(magic));
  const Lanes n = subtract(shifted, splat(magic));
  const Lanes rest = multiply_add(n, splat(-1.42860682e-6f), multiply_add(n, splat(-0.693145752f), x));
  Lanes p = splat(1.38888889e-3f);
  p = multiply_add(p, rest, splat(8.33333333e-3f));
  p = multiply_add(p, rest, splat(4.16666667e-2f));
  p = multiply_add(p, rest, splat(1.66666667e-1f));
  p = multiply_add(p, rest, splat(0.5f));
  p = multiply_add(p, rest, splat(1.0f));
  p = multiply_add(p, rest, splat(1.0f));
  return multiply(p, power_of_two(shifted));
}

inline float exponential(float x) {
  float all[kLanes];
  store(all, exponential(splat(x)));
  return all[0];
}

}  // namespace
}  // namespace lorikeet
