// Products by AVX512-VNNI: as in avx_vnni.cpp, with a whole block in one register.
#if defined(__x86_64__)
#include <immintrin.h>

#include "int8.h"

namespace lorikeet {
namespace {

// Add to each lane of sums the two products of weights with a pair of inputs. Written out, since compilers make two
// slower instructions of the intrinsic, an addition apart from its multiplications.
inline void add_products(__m512i& sums, __m512i weights, const int16_t* pair) {
  using Pair = struct { int16_t inputs[2]; };
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*reinterpret_cast<const Pair*>(pair)));
}

// chains: sums of each row that are made side by side, so that none waits for the one before. Integers add up to the
// same in any order. All inner loops are unrolled, else a compiler keeps the sums in memory.
template <int R, int kChains>
inline void rows_of(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t row, float* out,
                    int64_t stride) {
  const int64_t groups = matrix.num_groups;
  const int8_t* w = matrix.weights + block * groups * kGroup * kBlock;
  const uint16_t* scales = matrix.scales + block * groups * kBlock;
  const int16_t* x = rows.values + row * groups * kGroup;
  const float* xscales = rows.scales + row * groups;
  __m512 sums[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) sums[r] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; g++, scales += kBlock, x += kGroup) {
    __m512i products[R][kChains];
#pragma GCC unroll 16
    for (int i = 0; i < R * kChains; i++) products[i / kChains][i % kChains] = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; p++, w += 2 * kBlock) {
      const __m512i weights = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) add_products(products[r][p % kChains], weights, x + r * groups * kGroup + p * 2);
    }
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
    const __m512 wscales = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
      for (int c = 1; c < kChains; c++) products[r][0] = _mm512_add_epi32(products[r][0], products[r][c]);
      const __m512 both = _mm512_mul_ps(wscales, _mm512_set1_ps(xscales[r * groups + g]));
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[r][0]), both, sums[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) _mm512_storeu_ps(out + r * stride, sums[r]);
}

}  // namespace

void tile_avx512_vnni(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row,
                      int64_t num_rows, float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + 12 <= num_rows && r + 16 != num_rows; r += 12) {
    rows_of<12, 1>(matrix, block, rows, first_row + r, out + r * stride, stride);
  }
  for (; r + 8 <= num_rows; r += 8) rows_of<8, 1>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r + 4 <= num_rows; r += 4) rows_of<4, 2>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r + 2 <= num_rows; r += 2) rows_of<2, 4>(matrix, block, rows, first_row + r, out + r * stride, stride);
  for (; r < num_rows; r++) rows_of<1, 4>(matrix, block, rows, first_row + r, out + r * stride, stride);
}

}  // namespace lorikeet
#endif
