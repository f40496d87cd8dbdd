// Matrices of 8-bit integers in memory of their own.
#pragma once

#include "int8.h"

namespace lorikeet {

constexpr int64_t kMostOutputs = 1 << 19;
constexpr int64_t kMostInputs = 1 << 17;  // sums of a group stay exact whatever the number; scratch stays small

// Quantize weight [num_outputs, num_inputs], contiguous, with at most num_threads threads. Returns null if there is no
// memory, or a number is not finite.
Int8Matrix* quantize_matrix(const float* weight, int64_t num_outputs, int64_t num_inputs, int num_threads);

// Free a matrix that is in no call. Waits for helpers that came too late to such a call.
void free_matrix(Int8Matrix* matrix);

// The numbers that one row of the matrix stands for: out [num_inputs].
void dequantize_row(const Int8Matrix& matrix, int64_t output, float* out);

// The numbers that the matrix stands for: out [num_outputs, num_inputs].
void dequantize_matrix(const Int8Matrix& matrix, float* out);

}  // namespace lorikeet
