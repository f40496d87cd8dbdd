// Products by AVX512-VNNI: as in avx_vnni.cpp, with a whole block in one register.
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "int8.h"

namespace lorikeet {
namespace {

template <int R>
inline void rows_of(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t row, float* out,
                    int64_t stride) {
  const int64_t groups = matrix.num_groups;
  const int8_t* w = matrix.weights + block * groups * kGroup * kBlock;
  const uint16_t* scales = matrix.scales + block * groups * kBlock;
  const int16_t* x = rows.values + row * groups * kGroup;
  __m512 sums[R];
  for (int r = 0; r < R; r++) sums[r] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; g++, scales += kBlock, x += kGroup) {
    __m512i products[R];
    for (int r = 0; r < R; r++) products[r] = _mm512_setzero_si512();
    for (int p = 0; p < kPairs; p++, w += 2 * kBlock) {
      const __m512i weights = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
      for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, x + r * groups * kGroup + p * 2, 4);
        products[r] = _mm512_dpwssd_epi32(products[r], weights, _mm512_set1_epi32(pair));
      }
    }
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
    const __m512 wscales = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    for (int r = 0; r < R; r++) {
      const __m512 both = _mm512_mul_ps(wscales, _mm512_set1_ps(rows.scales[(row + r) * groups + g]));
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[r]), both, sums[r]);
    }
  }
  for (int r = 0; r < R; r++) _mm512_storeu_ps(out + r * stride, sums[r]);
}

}  // namespace

void tile_avx512_vnni(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row,
                      int64_t num_rows, float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + 8 <= num_rows; r += 8) rows_of<8>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r + 4 <= num_rows; r += 4) rows_of<4>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r + 2 <= num_rows; r += 2) rows_of<2>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r < num_rows; r++) rows_of<1>(matrix, block, rows, first_row + r, out + r * stride, stride);
}

}  // namespace lorikeet
#endif
