// Products by AVX-VNNI: as by AVX2, with one instruction for the product and both additions.
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "int8.h"

namespace lorikeet {
namespace {

// Add to each lane of sums the two products of weights with a pair of inputs. Written out, since compilers make two
// slower instructions of the intrinsic, an addition apart from its multiplications.
inline void add_products(__m256i& sums, __m256i weights, __m256i pair) {
  __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(pair));
}

// Half a block: 8 outputs of R rows. kChains: sums of each row that are made side by side, so that none waits for the one
// before. All inner loops are unrolled, else a compiler keeps the sums in memory.
template <int R, int kChains>
inline void half(const int8_t* w, const uint16_t* scales, const Rows& rows, int64_t row, int64_t groups, float* out,
                 int64_t stride) {
  const int16_t* x = rows.values + row * groups * kGroup;
  __m256 sums[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) sums[r] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; g++, scales += kBlock, x += kGroup) {
    __m256i products[R][kChains];
#pragma GCC unroll 16
    for (int i = 0; i < R * kChains; i++) products[i / kChains][i % kChains] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; p++, w += 2 * kBlock) {
      const __m256i weights = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, x + r * groups * kGroup + p * 2, 4);
        add_products(products[r][p % kChains], weights, _mm256_set1_epi32(pair));
      }
    }
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    const __m256 wscales = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
      for (int c = 1; c < kChains; c++) products[r][0] = _mm256_add_epi32(products[r][0], products[r][c]);
      const __m256 both = _mm256_mul_ps(wscales, _mm256_set1_ps(rows.scales[(row + r) * groups + g]));
      sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[r][0]), both, sums[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) _mm256_storeu_ps(out + r * stride, sums[r]);
}

template <int R, int kChains>
inline void rows_of(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t row, float* out,
                    int64_t stride) {
  const int64_t groups = matrix.num_groups;
  const int8_t* w = matrix.weights + block * groups * kGroup * kBlock;
  const uint16_t* scales = matrix.scales + block * groups * kBlock;
  half<R, kChains>(w, scales, rows, row, groups, out, stride);
  half<R, kChains>(w + kBlock, scales + kBlock / 2, rows, row, groups, out + kBlock / 2, stride);
}

}  // namespace

void tile_avx_vnni(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows,
                   float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) rows_of<4, 1>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r + 2 <= num_rows; r += 2) rows_of<2, 2>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r < num_rows; r++) rows_of<1, 4>(matrix, block, rows, first_row + r, out + r * stride, stride);
}

}  // namespace lorikeet
#endif
