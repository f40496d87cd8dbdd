// The instructions that AVX2 and AVX-VNNI share: 8 outputs in a register (see tile.h).
#pragma once

#include <immintrin.h>
#include <string.h>

#include "tile.h"

namespace lorikeet {
namespace {

struct Avx2Lanes {
  static constexpr int64_t kLanes = 8;
  using Words = __m256i;
  using Integers = __m256i;
  using Floats = __m256;

  static __m256i bytes(const uint8_t* p) { return _mm256_cvtepi8_epi16(eight_pairs(p)); }
  static __m256i nibbles(const uint8_t* p, int n) {
    const __m256i all = _mm256_srli_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 4 * n);
    return n == 3 ? all : _mm256_and_si256(all, _mm256_set1_epi16(15));
  }
  static __m256i no_products() { return _mm256_setzero_si256(); }
  static __m256i add(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
  static __m256 floats(__m256i a) { return _mm256_cvtepi32_ps(a); }
  static __m256 zeros() { return _mm256_setzero_ps(); }
  static __m256 all(float x) { return _mm256_set1_ps(x); }
  static __m256 bfloat16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_pairs(p)), 16));
  }
  static __m256 half(const uint16_t* p) { return _mm256_cvtph_ps(eight_pairs(p)); }
  static __m256 unsigned_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes(p))); }
  static __m256 signed_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p))); }
  static __m256 multiply(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 add_product(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* out, __m256 a) { _mm256_storeu_ps(out, a); }

  // Return a pair of inputs in the lanes of all outputs.
  static __m256i broadcast(const int16_t* pair) {
    int32_t both;
    memcpy(&both, pair, 4);
    return _mm256_set1_epi32(both);
  }

 private:
  static __m128i eight_pairs(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static __m128i eight_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
};

}  // namespace
}  // namespace lorikeet
