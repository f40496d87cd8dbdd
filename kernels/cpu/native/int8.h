// Products with a matrix of 8-bit integers, as all of this folder's files see them.
//
// A group is 32 inputs. Weights: round(w / scale) in -127..127, a scale in bfloat16 for each output and group.
// Inputs: round(x / scale) in -32767..32767, a scale in float32 for each row and group. Sums are made in one order:
//     out[row, o] = fma(sum_i x[row, g, i] * w[o, g, i], wscale[o, g] * xscale[row, g], out[row, o])   g = 0, 1, ...
// The inner sum is exact, so every path gives the same bits, whatever the other rows and however many threads.
#pragma once

#include <cstdint>

namespace lorikeet {

constexpr int64_t kGroup = 32;    // inputs that share a scale
constexpr int64_t kBlock = 16;    // outputs side by side in memory
constexpr int64_t kPairs = kGroup / 2;  // of inputs: what one instruction adds up

// weights: for each block, group and 2 inputs: [16 outputs][2 inputs]. scales: [blocks][groups][16]. Outputs and inputs
// that do not exist are zeros.
struct Int8Matrix {
  const int8_t* weights;
  const uint16_t* scales;
  int64_t num_outputs;
  int64_t num_inputs;
  int64_t num_groups;
};

// values [rows][groups * 32]; scales [rows][groups].
struct Rows {
  const int16_t* values;
  const float* scales;
};

// One block of outputs for num_rows rows from first_row: out [num_rows][stride], 16 of each row are written.
using Tile = void (*)(const Int8Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row,
                      int64_t num_rows, float* out, int64_t stride);

void tile_plain(const Int8Matrix&, int64_t, const Rows&, int64_t, int64_t, float*, int64_t);
void tile_avx2(const Int8Matrix&, int64_t, const Rows&, int64_t, int64_t, float*, int64_t);
void tile_avx_vnni(const Int8Matrix&, int64_t, const Rows&, int64_t, int64_t, float*, int64_t);
void tile_avx512_vnni(const Int8Matrix&, int64_t, const Rows&, int64_t, int64_t, float*, int64_t);

// Quantize one row of num_inputs numbers in float32, zeros up to the end of the last group. A group with an infinity or
// a NaN gets a NaN as its scale.
void quantize_row_plain(const float* x, int64_t num_inputs, int16_t* values, float* scales);
void quantize_row_avx2(const float* x, int64_t num_inputs, int16_t* values, float* scales);

}  // namespace lorikeet
