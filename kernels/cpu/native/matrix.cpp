#include "matrix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "dtype.h"
#include "fill.h"
#include "memory.h"
#include "pool.h"

namespace lorikeet {
namespace {

constexpr size_t kAlignment = 1 << 21;  // of huge pages, which large matrices ask for

void* zeros(size_t num_bytes) {
  const size_t alignment = num_bytes >= kAlignment ? kAlignment : 64;
  const size_t rounded = (num_bytes + alignment - 1) / alignment * alignment;
  void* memory = take_memory(alignment, rounded);
  if (!memory) return nullptr;
  if (alignment == kAlignment) madvise(memory, rounded, MADV_HUGEPAGE);
  memset(memory, 0, rounded);
  return memory;
}

bool is_k(Kind kind) { return kind == kQ4K || kind == kQ6K; }
bool has_nibbles(Kind kind) { return kind == kInt4 || kind == kQ4K; }

int64_t whole(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Write the numbers that a group of one output stands for to out [kGroup].
void dequantize_group(const Part& part, int64_t output, int64_t group, float* out) {
  const int64_t place = place_of(part, output, group), above = place_above(part, output, group);
  const uint8_t* factors = part.factors + factors_place(part, output, group);
  float scales[2], minimum = 0.0f;
  if (part.kind == kQ4K) {
    scales[0] = scales[1] = from_half(part.scales[above]) * float(factors[0]);
    minimum = from_half(part.minima[above]) * float(factors[kBlock]);
  } else if (part.kind == kQ6K) {
    for (int i = 0; i < 2; i++) scales[i] = from_half(part.scales[above]) * float(int8_t(factors[i * kBlock]));
  } else {
    scales[0] = scales[1] = part.kind == kInt8 ? from_bfloat16(part.scales[place]) : from_half(part.scales[place]);
    if (part.kind == kInt4) minimum = from_half(part.minima[place]);
  }
  const int64_t number = (output / kBlock) * part.num_groups + group;
  for (int i = 0; i < kGroup; i++) {
    if (has_nibbles(part.kind)) {
      const uint8_t* of_eight = part.weights + (number * kGroup / 2 + i / 8 * 4) * kBlock + output % kBlock * 4;
      const int q = of_eight[i % 2 * 2 + i % 8 / 4] >> i % 4 / 2 * 4 & 15;
      out[i] = scales[0] * float(q) + minimum;
    } else {
      const uint8_t* weights = part.weights + number * kGroup * kBlock + output % kBlock * 2;
      out[i] = scales[i * 2 / kGroup] * float(int8_t(weights[i / 2 * 2 * kBlock + i % 2]));
    }
  }
}

}  // namespace

Matrix* new_matrix(Kind kind, int64_t num_outputs, int64_t num_inputs) {
  if (num_outputs < 1 || num_inputs < 1 || num_outputs > kMostOutputs || num_inputs > kMostInputs) return nullptr;
  if (kind < 0 || kind >= kKinds || (is_k(kind) && num_inputs % (kSuper * kGroup) != 0)) return nullptr;
  const int64_t groups = (num_inputs + kGroup - 1) / kGroup, blocks = (num_outputs + kBlock - 1) / kBlock;
  const int64_t weights = whole(blocks * groups * kGroup * kBlock / (has_nibbles(kind) ? 2 : 1));
  const int64_t scales = whole(blocks * (is_k(kind) ? groups / kSuper : groups) * kBlock * sizeof(uint16_t));
  const int64_t minima = has_nibbles(kind) ? scales : 0;
  const int64_t factors = is_k(kind) ? whole(blocks * groups * 2 * kBlock) : 0;
  auto* matrix = static_cast<Matrix*>(malloc(sizeof(Matrix)));
  auto* memory = static_cast<uint8_t*>(zeros(weights + scales + minima + factors));
  if (!matrix || !memory) {
    free(matrix), free(memory);
    return nullptr;
  }
  *matrix = {num_outputs, num_inputs, groups, 1, {}};
  matrix->parts[0] = {memory,
                      reinterpret_cast<uint16_t*>(memory + weights),
                      reinterpret_cast<uint16_t*>(memory + weights + scales),
                      memory + weights + scales + minima,
                      num_outputs,
                      groups,
                      weights + scales + minima + factors,
                      kind};
  return matrix;
}

bool join_matrices(Matrix* first, Matrix* second) {
  if (first->num_inputs != second->num_inputs || first->num_outputs % kBlock != 0 ||
      first->num_parts + second->num_parts > kMostParts || first->num_outputs + second->num_outputs > kMostOutputs) {
    return false;
  }
  wait_for_helpers();
  for (int64_t i = 0; i < second->num_parts; i++) first->parts[first->num_parts++] = second->parts[i];
  first->num_outputs += second->num_outputs;
  free(second);
  return true;
}

void free_matrix(Matrix* matrix) {
  wait_for_helpers();
  for (int64_t i = 0; i < matrix->num_parts; i++) free(const_cast<uint8_t*>(matrix->parts[i].weights));
  free(matrix);
}

void dequantize_row(const Matrix& matrix, int64_t output, float* out) {
  const Part* part = matrix.parts;
  for (; output >= part->num_outputs; part++) output -= part->num_outputs;
  for (int64_t group = 0; group < matrix.num_groups; group++) {
    float numbers[kGroup];
    dequantize_group(*part, output, group, numbers);
    const int64_t first = group * kGroup, rest = matrix.num_inputs - first;
    memcpy(out + first, numbers, (rest < kGroup ? rest : kGroup) * sizeof(float));
  }
}

void dequantize_matrix(const Matrix& matrix, float* out) {
  for (int64_t output = 0; output < matrix.num_outputs; output++) {
    dequantize_row(matrix, output, out + output * matrix.num_inputs);
  }
}

}  // namespace lorikeet
