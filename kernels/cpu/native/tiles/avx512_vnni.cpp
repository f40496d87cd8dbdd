// Products by AVX512-VNNI: as in avx_vnni.cpp, with a whole block in one register.
#if defined(__x86_64__)
#include <immintrin.h>

#include "tile.h"

namespace lorikeet {
namespace {

struct Avx512Vnni {
  static constexpr int64_t kLanes = 16;
  using Words = __m512i;
  using Integers = __m512i;
  using Floats = __m512;

  static __m512i bytes(const uint8_t* p) { return _mm512_cvtepi8_epi16(sixteen_pairs(p)); }
  static __m512i nibbles(const uint8_t* p, int n) {
    const __m512i all = _mm512_srli_epi16(_mm512_loadu_si512(p), 4 * n);
    return n == 3 ? all : _mm512_and_si512(all, _mm512_set1_epi16(15));
  }
  // Written out: see avx_vnni.cpp.
  static void add_products(__m512i& sums, __m512i weights, const int16_t* pair) {
    using Pair = struct { int16_t inputs[2]; };
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*reinterpret_cast<const Pair*>(pair)));
  }
  static __m512i no_products() { return _mm512_setzero_si512(); }
  static __m512i add(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
  static __m512 floats(__m512i a) { return _mm512_cvtepi32_ps(a); }
  static __m512 zeros() { return _mm512_setzero_ps(); }
  static __m512 all(float x) { return _mm512_set1_ps(x); }
  static __m512 bfloat16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen_pairs(p)), 16));
  }
  static __m512 half(const uint16_t* p) { return _mm512_cvtph_ps(sixteen_pairs(p)); }
  static __m512 unsigned_bytes(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen_bytes(p))); }
  static __m512 signed_bytes(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(p))); }
  static __m512 multiply(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 add_product(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* out, __m512 a) { _mm512_storeu_ps(out, a); }

 private:
  static __m256i sixteen_pairs(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static __m128i sixteen_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
};

template <template <class> class Format>
void tile(const Part& part, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows, float* out,
          int64_t stride) {
  passes<Avx512Vnni, Format, 12, 8>(part, block, rows, first_row, num_rows, out, stride);
}

}  // namespace

const Tile tiles_avx512_vnni[kKinds] = {tile<Int8Format>, tile<Int4Format>, tile<Q8Format>, tile<Q4KFormat>,
                                        tile<Q6KFormat>};

}  // namespace lorikeet
#endif
