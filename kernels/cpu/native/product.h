// The structs of products with a matrix of small integers, for all files of this folder.
//
// A group is 32 inputs. A weight stands for scale * q + minimum, with an integer q of its own; see Kind for what each
// format has of these. Inputs: round(x / scale) in -32767..32767, a scale in float32 for each row and group. Sums are
// made in one order:
//     out[row, o] = fma(sum_i x[row, g, i] * q[o, g, i], wscale[o, g] * xscale[row, g], out[row, o])
//     out[row, o] = fma(minimum[o, g], xscale[row, g] * sum_i x[row, g, i], out[row, o])    g = 0, 1, ...
// The sums of a group are exact, so every path gives the same bits, whatever the other rows and however many threads.
#pragma once

#include <cstdint>

namespace lorikeet {

constexpr int64_t kGroup = 32;    // inputs that share a scale
constexpr int64_t kBlock = 16;    // outputs side by side in memory
constexpr int64_t kPairs = kGroup / 2;  // of inputs: what one instruction adds up
constexpr int64_t kSuper = 8;     // groups that share the two numbers by which scales and minima of a K format are multiplied
constexpr int64_t kMostParts = 3; // of one matrix

// Formats of a part of a matrix. half: float16, as the scales in files have it.
enum Kind : int32_t {
  kInt8 = 0,  // q in -127..127, a scale in bfloat16
  kInt4 = 1,  // q in 0..15, a scale and a minimum in half: also Q4_1, and Q4_0 with a minimum of -8 scales
  kQ8 = 2,    // q in -128..127, a scale in half: Q8_0
  kQ4K = 3,   // q in 0..15, a scale and a minimum of 6 bits each, times two numbers in half for 8 groups: Q4_K
  kQ6K = 4,   // q in -32..31, a scale of 8 bits for 16 inputs, times a number in half for 8 groups: Q6_K
};
constexpr int kKinds = 5;

// The outputs of a matrix that have one format. All sections lie in the memory of weights, one after the other, each at
// a multiple of 64 bytes.
// weights: for each block and group, of 8 bits: for each 2 inputs [16 outputs][2 inputs]; of 4 bits: for each 8 inputs
//     [16 outputs][2 inputs] of 16 bits, whose lowest 4 are of inputs 0 and 1, the next of 2 and 3.
// scales, minima: [blocks][groups, or supers of a K format][16]. factors, of K formats: [blocks][groups][2][16], of
//     Q4_K for scale and minimum, of Q6_K for each half of the group.
// Outputs and inputs that do not exist are zeros.
struct Part {
  const uint8_t* weights;
  const uint16_t* scales;
  const uint16_t* minima;
  const uint8_t* factors;
  int64_t num_outputs, num_groups, num_bytes;
  Kind kind;
};

// A matrix of several parts, one after the other: all but the last have a multiple of 16 outputs.
struct Matrix {
  int64_t num_outputs, num_inputs, num_groups, num_parts;
  Part parts[kMostParts];
};

// Quantized rows: values [rows][groups * 32]; scales [rows][groups]; sums [rows][groups]: the sum of a group's values,
// times its scale.
struct Rows {
  const int16_t* values;
  const float* scales;
  const float* sums;
};

// A function that computes one block of outputs of a part for num_rows rows from first_row: out [num_rows][stride], of
// which 16 numbers of each row are written.
using Tile = void (*)(const Part& part, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows, float* out,
                      int64_t stride);

// The tiles of each path, by Kind.
extern const Tile tiles_plain[kKinds];
extern const Tile tiles_avx2[kKinds];
extern const Tile tiles_avx_vnni[kKinds];
extern const Tile tiles_avx512_vnni[kKinds];

// Compute a block of outputs of a matrix by the tiles of a path.
inline void compute_block(const Tile* tiles, const Matrix& matrix, int64_t block, const Rows& rows, int64_t first_row,
                          int64_t num_rows, float* out, int64_t stride) {
  const Part* part = matrix.parts;
  for (int64_t blocks; block >= (blocks = (part->num_outputs + kBlock - 1) / kBlock); part++) block -= blocks;
  tiles[part->kind](*part, block, rows, first_row, num_rows, out, stride);
}

// Quantize one row of num_inputs numbers in float32, zeros up to the end of the last group. A group with an infinity or
// a NaN gets a NaN as its scale.
using QuantizeRow = void (*)(const float* x, int64_t num_inputs, int16_t* values, float* scales, float* sums);
void quantize_row_plain(const float* x, int64_t num_inputs, int16_t* values, float* scales, float* sums);
void quantize_row_avx2(const float* x, int64_t num_inputs, int16_t* values, float* scales, float* sums);

}  // namespace lorikeet
