#include "linear.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "pool.h"

namespace lorikeet {
namespace {

constexpr int64_t kMostRows = 512;   // of one job, so that its inputs stay in the processor's caches
constexpr int64_t kPanel = 64;       // rows of a unit
constexpr int64_t kMostBlocks = 16;  // of a unit
constexpr int64_t kUnitsPerThread = 8;
static_assert(kPanel * kMostBlocks * kBlock <= kBufferFloats, "a unit fits a thread's buffer");

struct Task {
  const Tile* tiles;
  const Matrix* matrix;
  Rows rows;
  char* y;
  const float* bias;
  int64_t num_rows, num_outputs, y_stride, num_blocks, blocks_per_unit, num_panels;
  Dtype dtype;
  bool add;
};
static_assert(sizeof(Task) <= kTaskBytes, "a job has room for the task");

// The quantized rows of one thread's calls. Helpers that come late may read them: they are never freed.
struct Scratch {
  int16_t* values;
  float* scales;
  float* sums;
  float* row;
  int64_t num_groups;
};
thread_local Scratch scratch;

bool reserve(int64_t num_groups, int64_t inputs) {
  const int64_t wanted = num_groups > inputs / kGroup + 1 ? num_groups : inputs / kGroup + 1;
  if (scratch.num_groups >= wanted) return true;
  const int64_t room = (wanted * 2 + 63) / 64 * 64;
  auto* values = static_cast<int16_t*>(take_memory(64, room * kGroup * sizeof(int16_t)));
  auto* scales = static_cast<float*>(take_memory(64, room * sizeof(float)));
  auto* sums = static_cast<float*>(take_memory(64, room * sizeof(float)));
  auto* row = static_cast<float*>(take_memory(64, room * kGroup * sizeof(float)));
  if (!values || !scales || !sums || !row) {
    free(values), free(scales), free(sums), free(row);
    return false;
  }
  scratch = {values, scales, sums, row, room};
  return true;
}

void quantize_rows(const Product& product, const Path& path, int64_t first, int64_t count) {
  const int64_t inputs = product.matrix->num_inputs, groups = product.matrix->num_groups;
  for (int64_t r = 0; r < count; r++) {
    const int64_t start = (first + r) * product.x_stride;
    const float* x = static_cast<const float*>(product.x) + start;
    if (product.dtype == kBfloat16) {
      const uint16_t* halves = static_cast<const uint16_t*>(product.x) + start;
      for (int64_t i = 0; i < inputs; i++) scratch.row[i] = from_bfloat16(halves[i]);
      x = scratch.row;
    }
    const int64_t group = r * groups;
    path.quantize_row(x, inputs, scratch.values + group * kGroup, scratch.scales + group, scratch.sums + group);
  }
}

struct Area {
  int64_t first_row, num_rows, first_block, num_blocks;
};

Area area_of(const Task& task, int64_t unit) {
  const int64_t row = unit % task.num_panels * kPanel, block = unit / task.num_panels * task.blocks_per_unit;
  const int64_t rows = task.num_rows - row, blocks = task.num_blocks - block;
  return {row, rows < kPanel ? rows : kPanel, block, blocks < task.blocks_per_unit ? blocks : task.blocks_per_unit};
}

void compute(const void* argument, int64_t unit, float* buffer) {
  const Task& task = *static_cast<const Task*>(argument);
  const Area area = area_of(task, unit);
  const int64_t stride = area.num_blocks * kBlock;
  for (int64_t b = 0; b < area.num_blocks; b++) {
    compute_block(task.tiles, *task.matrix, area.first_block + b, task.rows, area.first_row, area.num_rows,
                  buffer + b * kBlock, stride);
  }
}

void store(const void* argument, int64_t unit, const float* buffer) {
  const Task& task = *static_cast<const Task*>(argument);
  const Area area = area_of(task, unit);
  const int64_t first = area.first_block * kBlock, stride = area.num_blocks * kBlock;
  const int64_t rest = task.num_outputs - first, count = rest < stride ? rest : stride;
  for (int64_t r = 0; r < area.num_rows; r++) {
    const float* from = buffer + r * stride;
    const int64_t start = (area.first_row + r) * task.y_stride + first;
    auto* floats = reinterpret_cast<float*>(task.y) + start;
    auto* halves = reinterpret_cast<uint16_t*>(task.y) + start;
    for (int64_t o = 0; o < count; o++) {
      float value = from[o];
      if (task.bias) value += task.bias[first + o];
      if (task.add) value += task.dtype == kFloat32 ? floats[o] : from_bfloat16(halves[o]);
      if (task.dtype == kFloat32) floats[o] = value;
      else halves[o] = to_bfloat16(value);
    }
  }
}

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

bool multiply(const Product& product, const Path& path, int num_threads) {
  const Matrix& matrix = *product.matrix;
  const int64_t most_rows = product.num_rows < kMostRows ? product.num_rows : kMostRows;
  if (!reserve(most_rows * matrix.num_groups, matrix.num_inputs)) return false;
  const int64_t blocks = ceiling(matrix.num_outputs, kBlock);
  int64_t blocks_per_unit = blocks / (num_threads * kUnitsPerThread);
  blocks_per_unit = blocks_per_unit < 1 ? 1 : blocks_per_unit > kMostBlocks ? kMostBlocks : blocks_per_unit;
  for (int64_t first = 0; first < product.num_rows; first += kMostRows) {
    const int64_t count = product.num_rows - first < kMostRows ? product.num_rows - first : kMostRows;
    quantize_rows(product, path, first, count);
    const int64_t panels = ceiling(count, kPanel);
    const Task task = {path.tiles,
                       &matrix,
                       {scratch.values, scratch.scales, scratch.sums},
                       static_cast<char*>(product.y) + first * product.y_stride * (product.dtype == kFloat32 ? 4 : 2),
                       product.bias,
                       count,
                       matrix.num_outputs,
                       product.y_stride,
                       blocks,
                       blocks_per_unit,
                       panels,
                       product.dtype,
                       product.add};
    Job job = {compute, nullptr, store, 0, {}};
    memcpy(job.task, &task, sizeof task);
    run(job, ceiling(blocks, blocks_per_unit) * panels, num_threads);
  }
  return true;
}

}  // namespace lorikeet
