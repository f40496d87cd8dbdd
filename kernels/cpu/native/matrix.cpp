#include "matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>

#include "dtype.h"
#include "memory.h"
#include "pool.h"

namespace lorikeet {
namespace {

constexpr size_t kAlignment = 1 << 21;    // of huge pages, which large matrices ask for
constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: added and taken away, it rounds to the nearest, ties to even
constexpr int kScales = 8;                // that are tried for each group
constexpr int64_t kBlocksPerUnit = 16;    // of outputs

void* zeros(size_t num_bytes) {
  const size_t alignment = num_bytes >= kAlignment ? kAlignment : 64;
  const size_t rounded = (num_bytes + alignment - 1) / alignment * alignment;
  void* memory = take_memory(alignment, rounded);
  if (!memory) return nullptr;
  if (alignment == kAlignment) madvise(memory, rounded, MADV_HUGEPAGE);
  memset(memory, 0, rounded);
  return memory;
}

// Where the weight of an output and input lies.
size_t place(const Int8Matrix& matrix, int64_t output, int64_t input) {
  const int64_t group = (output / kBlock) * matrix.num_groups + input / kGroup;
  return group * kGroup * kBlock + (input % kGroup / 2 * kBlock + output % kBlock) * 2 + input % 2;
}

float rounded(float w, float scale) {
  const float value = (w / scale + kRounding) - kRounding;
  return value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value;
}

// The sum of squares of what the weights of a group lose by this scale.
double loss(const float* w, float scale) {
  double sums[4] = {};
  for (int i = 0; i < kGroup; i += 4) {
    for (int j = 0; j < 4; j++) {
      const float error = rounded(w[i + j], scale) * scale - w[i + j];
      sums[j] += double(error) * error;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Of the numbers in bfloat16 near the largest weight / 127, the one that loses least; 0 for a group of zeros.
uint16_t best_scale(const float* w, float bound) {
  if (bound < 1e-30f) return 0;
  const float middle = bound / 127.0f;
  uint32_t bits;
  memcpy(&bits, &middle, 4);
  uint16_t best = uint16_t((bits + 0xffff) >> 16);
  double least = loss(w, from_bfloat16(best));
  for (int number = 1, half = best - 1; number < kScales; number++, half--) {
    const float scale = from_bfloat16(uint16_t(half)), cut = rounded(bound, scale) * scale - bound;
    if (double(cut) * cut >= least) continue;  // the largest weight alone loses that much, and a sum is no smaller
    const double lost = loss(w, scale);
    if (lost < least) least = lost, best = uint16_t(half);
  }
  return best;
}

struct Quantization {
  const float* source;
  Int8Matrix matrix;
  int8_t* weights;
  uint16_t* scales;
  std::atomic<bool>* failed;
};

bool quantize_group(const Quantization& task, int64_t output, int64_t group) {
  const Int8Matrix& matrix = task.matrix;
  const int64_t rest = matrix.num_inputs - group * kGroup, count = rest < kGroup ? rest : kGroup;
  float w[kGroup] = {}, bound = 0;
  memcpy(w, task.source + output * matrix.num_inputs + group * kGroup, count * sizeof(float));
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(w[i])) return false;
    bound = fabsf(w[i]) > bound ? fabsf(w[i]) : bound;
  }
  const uint16_t half = best_scale(w, bound);
  task.scales[((output / kBlock) * matrix.num_groups + group) * kBlock + output % kBlock] = half;
  if (!half) return true;
  for (int64_t i = 0; i < count; i++) {
    task.weights[place(matrix, output, group * kGroup + i)] = int8_t(rounded(w[i], from_bfloat16(half)));
  }
  return true;
}

void nothing(const void*, int64_t, float*) {}

// Quantize some blocks of outputs.
void quantize_unit(const void* argument, int64_t unit, const float*) {
  const Quantization& task = *static_cast<const Quantization*>(argument);
  const int64_t first = unit * kBlocksPerUnit * kBlock, end = first + kBlocksPerUnit * kBlock;
  const int64_t outputs = task.matrix.num_outputs;
  for (int64_t output = first; output < (end < outputs ? end : outputs); output++) {
    for (int64_t group = 0; group < task.matrix.num_groups; group++) {
      if (!quantize_group(task, output, group)) task.failed->store(true, std::memory_order_relaxed);
    }
  }
}

}  // namespace

Int8Matrix* quantize_matrix(const float* weight, int64_t num_outputs, int64_t num_inputs, int num_threads) {
  if (num_outputs < 1 || num_inputs < 1 || num_outputs > kMostOutputs || num_inputs > kMostInputs) return nullptr;
  const int64_t groups = (num_inputs + kGroup - 1) / kGroup, blocks = (num_outputs + kBlock - 1) / kBlock;
  auto* matrix = static_cast<Int8Matrix*>(malloc(sizeof(Int8Matrix)));
  auto* weights = static_cast<int8_t*>(zeros(blocks * groups * kGroup * kBlock));
  auto* scales = static_cast<uint16_t*>(zeros(blocks * groups * kBlock * sizeof(uint16_t)));
  if (matrix && weights && scales) {
    *matrix = {weights, scales, num_outputs, num_inputs, groups};
    std::atomic<bool> failed{false};
    const Quantization task = {weight, *matrix, weights, scales, &failed};
    static_assert(sizeof(Quantization) <= kTaskBytes, "a job has room for the task");
    Job job = {nothing, quantize_unit, {}};
    memcpy(job.task, &task, sizeof task);
    run(job, (blocks + kBlocksPerUnit - 1) / kBlocksPerUnit, num_threads);
    if (!failed.load(std::memory_order_relaxed)) return matrix;
  }
  free(weights), free(scales), free(matrix);
  return nullptr;
}

void free_matrix(Int8Matrix* matrix) {
  wait_for_helpers();
  free(const_cast<int8_t*>(matrix->weights)), free(const_cast<uint16_t*>(matrix->scales)), free(matrix);
}

void dequantize_row(const Int8Matrix& matrix, int64_t output, float* out) {
  for (int64_t input = 0; input < matrix.num_inputs; input++) {
    const int64_t group = (output / kBlock) * matrix.num_groups + input / kGroup;
    const float scale = from_bfloat16(matrix.scales[group * kBlock + output % kBlock]);
    out[input] = scale * matrix.weights[place(matrix, output, input)];
  }
}

void dequantize_matrix(const Int8Matrix& matrix, float* out) {
  for (int64_t output = 0; output < matrix.num_outputs; output++) {
    dequantize_row(matrix, output, out + output * matrix.num_inputs);
  }
}

}  // namespace lorikeet
