// Fills a part of a matrix, group by group, with all threads.
#pragma once

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "matrix.h"
#include "pool.h"

namespace lorikeet {
namespace {

constexpr int64_t kBlocksPerUnit = 16;  // of outputs

// Return where the scale of an output's group is in a part; the functions below do so for its minimum and its factors.
inline int64_t place_of(const Part& part, int64_t output, int64_t group) {
  return ((output / kBlock) * part.num_groups + group) * kBlock + output % kBlock;
}
inline int64_t place_above(const Part& part, int64_t output, int64_t group) {
  return ((output / kBlock) * (part.num_groups / kSuper) + group / kSuper) * kBlock + output % kBlock;
}
inline int64_t factors_place(const Part& part, int64_t output, int64_t group) {
  return ((output / kBlock) * part.num_groups + group) * 2 * kBlock + output % kBlock;
}

inline void put_bytes(const Part& part, int64_t output, int64_t group, const int8_t* q) {
  auto* to = const_cast<uint8_t*>(part.weights) + ((output / kBlock) * part.num_groups + group) * kGroup * kBlock;
  to += output % kBlock * 2;
  for (int i = 0; i < kGroup; i++) to[i / 2 * 2 * kBlock + i % 2] = uint8_t(q[i]);
}

inline void put_nibbles(const Part& part, int64_t output, int64_t group, const uint8_t* q) {
  auto* to = const_cast<uint8_t*>(part.weights) + ((output / kBlock) * part.num_groups + group) * kGroup / 2 * kBlock;
  to += output % kBlock * 4;
  for (int i = 0; i < kGroup; i += 8, to += 4 * kBlock, q += 8) {
    for (int parity = 0; parity < 2; parity++) {
      to[parity * 2] = uint8_t(q[parity] | q[2 + parity] << 4);
      to[parity * 2 + 1] = uint8_t(q[4 + parity] | q[6 + parity] << 4);
    }
  }
}

inline uint16_t* scales_of(const Part& part) { return const_cast<uint16_t*>(part.scales); }
inline uint16_t* minima_of(const Part& part) { return const_cast<uint16_t*>(part.minima); }
inline uint8_t* factors_of(const Part& part) { return const_cast<uint8_t*>(part.factors); }

inline bool is_finite_half(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// The task of filling a part from a source. fill: fills groups_per_unit groups of an output; returns false for numbers
// that the format cannot hold.
template <typename Source>
struct FillTask {
  Source source;
  const Part* part;
  int64_t groups_per_unit;
  bool (*fill)(const Source& source, const Part& part, int64_t output, int64_t unit);
  std::atomic<bool>* failed;
};

inline void nothing(const void*, int64_t, float*) {}

// Fill some blocks of outputs. This is a job's `store`, so that the memory that it reads may be freed once the job is
// over.
template <typename Source>
void fill_unit(const void* argument, int64_t unit, const float*) {
  const auto& task = *static_cast<const FillTask<Source>*>(argument);
  const int64_t first = unit * kBlocksPerUnit * kBlock, end = first + kBlocksPerUnit * kBlock;
  for (int64_t output = first; output < (end < task.part->num_outputs ? end : task.part->num_outputs); output++) {
    for (int64_t each = 0; each < task.part->num_groups / task.groups_per_unit; each++) {
      if (!task.fill(task.source, *task.part, output, each)) task.failed->store(true, std::memory_order_relaxed);
    }
  }
}

// Fill a new matrix, and return it; free it, and return null, if a number cannot be stored.
template <typename Source>
Matrix* filled(Matrix* matrix, const Source& source, int64_t groups_per_unit,
               bool (*fill)(const Source&, const Part&, int64_t, int64_t), int num_threads) {
  if (!matrix) return nullptr;
  std::atomic<bool> failed{false};
  const FillTask<Source> task = {source, matrix->parts, groups_per_unit, fill, &failed};
  static_assert(sizeof task <= kTaskBytes, "a job has room for the task");
  Job job = {nothing, nullptr, fill_unit<Source>, 0, {}};
  memcpy(job.task, &task, sizeof task);
  constexpr int64_t outputs = kBlocksPerUnit * kBlock;
  run(job, (matrix->num_outputs + outputs - 1) / outputs, num_threads);
  if (!failed.load(std::memory_order_relaxed)) return matrix;
  free_matrix(matrix);
  return nullptr;
}

}  // namespace
}  // namespace lorikeet
