// Products for any processor: the definition, which all other paths equal bit by bit.
#include "quantize_row.h"

namespace lorikeet {

void quantize_row_plain(const float* x, int64_t num_inputs, int16_t* values, float* scales) {
  quantize_row(x, num_inputs, values, scales);
}

void tile_plain(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows,
                float* out, int64_t stride) {
  const int64_t groups = matrix.num_groups;
  for (int64_t r = 0; r < num_rows; r++) {
    const int8_t* w = matrix.weights + block * groups * kGroup * kBlock;
    const uint16_t* scales = matrix.scales + block * groups * kBlock;
    const int16_t* x = rows.values + (first_row + r) * groups * kGroup;
    float sums[kBlock] = {};
    for (int64_t g = 0; g < groups; g++, w += kGroup * kBlock, x += kGroup) {
      const float xscale = rows.scales[(first_row + r) * groups + g];
      for (int64_t o = 0; o < kBlock; o++) {
        int32_t sum = 0;
        for (int64_t i = 0; i < kGroup; i++) sum += w[(i / 2 * kBlock + o) * 2 + i % 2] * x[i];
        const uint32_t bits = uint32_t(scales[g * kBlock + o]) << 16;
        float wscale;
        memcpy(&wscale, &bits, 4);
        sums[o] = __builtin_fmaf(float(sum), wscale * xscale, sums[o]);
      }
    }
    memcpy(out + r * stride, sums, sizeof sums);
  }
}

}  // namespace lorikeet
