// Products by AVX2: weights are widened to 16 bits, then pairs of products are added up in 32 bits, which hold the sum
// of a group.
#if defined(__x86_64__)
#include "avx2_lanes.h"
#include "quantize_row.h"

namespace lorikeet {
namespace {

struct Avx2 : Avx2Lanes {
  static void add_products(__m256i& sums, __m256i weights, const int16_t* pair) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(weights, broadcast(pair)));
  }
};

template <template <class> class Format>
void tile(const Part& part, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows, float* out,
          int64_t stride) {
  passes<Avx2, Format, 4, 1>(part, block, rows, first_row, num_rows, out, stride);
}

}  // namespace

const Tile tiles_avx2[kKinds] = {tile<Int8Format>, tile<Int4Format>, tile<Q8Format>, tile<Q4KFormat>, tile<Q6KFormat>};

void quantize_row_avx2(const float* x, int64_t num_inputs, int16_t* values, float* scales, float* sums) {
  quantize_row(x, num_inputs, values, scales, sums);
}

}  // namespace lorikeet
#endif
