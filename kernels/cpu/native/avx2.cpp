// Products by AVX2: weights widened to 16 bits, then pairs of products added up in 32. A whole group fits these.
#if defined(__x86_64__)
#include <immintrin.h>

#include "quantize_row.h"

namespace lorikeet {
namespace {

// Half a block: 8 outputs of R rows.
template <int R>
inline void half(const int8_t* w, const uint16_t* scales, const Rows& rows, int64_t row, int64_t groups, float* out,
                 int64_t stride) {
  const int16_t* x = rows.values + row * groups * kGroup;
  __m256 sums[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) sums[r] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; g++, scales += kBlock, x += kGroup) {
    __m256i products[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) products[r] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; p++, w += 2 * kBlock) {
      const __m256i weights = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, x + r * groups * kGroup + p * 2, 4);
        products[r] = _mm256_add_epi32(products[r], _mm256_madd_epi16(weights, _mm256_set1_epi32(pair)));
      }
    }
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    const __m256 wscales = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const __m256 both = _mm256_mul_ps(wscales, _mm256_set1_ps(rows.scales[(row + r) * groups + g]));
      sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[r]), both, sums[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) _mm256_storeu_ps(out + r * stride, sums[r]);
}

template <int R>
inline void rows_of(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t row, float* out,
                    int64_t stride) {
  const int64_t groups = matrix.num_groups;
  const int8_t* w = matrix.weights + block * groups * kGroup * kBlock;
  const uint16_t* scales = matrix.scales + block * groups * kBlock;
  half<R>(w, scales, rows, row, groups, out, stride);
  half<R>(w + kBlock, scales + kBlock / 2, rows, row, groups, out + kBlock / 2, stride);
}

}  // namespace

void tile_avx2(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows,
               float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) rows_of<4>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r + 2 <= num_rows; r += 2) rows_of<2>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r < num_rows; r++) rows_of<1>(matrix, block, rows, first_row + r, out + r * stride, stride);
}

void quantize_row_avx2(const float* x, int64_t num_inputs, int16_t* values, float* scales) {
  quantize_row(x, num_inputs, values, scales);
}

}  // namespace lorikeet
#endif
