// Products by AVX-VNNI: as by AVX2, with one instruction for the product and both additions.
#if defined(__x86_64__)
#include "avx2_lanes.h"

namespace lorikeet {
namespace {

struct AvxVnni : Avx2Lanes {
  // Written out, since compilers make two slower instructions of the intrinsic, an addition apart from its multiplications.
  static void add_products(__m256i& sums, __m256i weights, const int16_t* pair) {
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(broadcast(pair)));
  }
};

template <template <class> class Format>
void tile(const Part& part, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows, float* out,
          int64_t stride) {
  passes<AvxVnni, Format, 4, 4>(part, block, rows, first_row, num_rows, out, stride);
}

}  // namespace

const Tile tiles_avx_vnni[kKinds] = {tile<Int8Format>, tile<Int4Format>, tile<Q8Format>, tile<Q4KFormat>, tile<Q6KFormat>};

}  // namespace lorikeet
#endif
