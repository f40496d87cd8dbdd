// Matrices of small integers in memory of their own.
#pragma once

#include "product.h"

namespace lorikeet {

constexpr int64_t kMostOutputs = 1 << 19;
constexpr int64_t kMostInputs = 1 << 17;  // sums of a group stay exact whatever the number; scratch stays small

// Formats of blocks in files, by their numbers in GGUF.
enum FileFormat : int32_t { kFileQ4_0 = 2, kFileQ4_1 = 3, kFileQ8_0 = 8, kFileQ4_K = 12, kFileQ6_K = 14 };

// Make a matrix of one part whose numbers are all 0. Returns null if there is no memory, or if no matrix has such a
// size.
Matrix* new_matrix(Kind kind, int64_t num_outputs, int64_t num_inputs);

// Quantize weight [num_outputs, num_inputs], contiguous, to kInt8 or kInt4 with at most num_threads threads. Errors of
// kInt4 are weighed by the importance of their inputs [num_inputs] unless it is null. Returns null if there is no memory, or
// a number is not finite or too large.
Matrix* quantize_matrix(Kind kind, const float* weight, int64_t num_outputs, int64_t num_inputs, const float* importance,
                        int num_threads);

// Make a matrix from the blocks of a file: num_outputs rows of num_inputs numbers. Returns null if there is no memory,
// the format is none of the above, rows are no whole blocks, or a number is not finite.
Matrix* pack_matrix(FileFormat format, const uint8_t* rows, int64_t num_outputs, int64_t num_inputs, int num_threads);

// Move the parts of second, which is freed, behind those of first. Returns false, and leaves both as they are, where they
// do not fit together.
bool join_matrices(Matrix* first, Matrix* second);

// Free a matrix that no call uses. Waits for helpers that came too late to such a call.
void free_matrix(Matrix* matrix);

// Write the numbers that one row of the matrix stands for to out [num_inputs].
void dequantize_row(const Matrix& matrix, int64_t output, float* out);

// Write the numbers that the matrix stands for to out [num_outputs, num_inputs].
void dequantize_matrix(const Matrix& matrix, float* out);

}  // namespace lorikeet
