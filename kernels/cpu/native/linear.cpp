#include "linear.h"

#include <stdlib.h>

#include "job.h"
#include "memory.h"

namespace lorikeet {
namespace {

constexpr int64_t kMostRows = 512;   // of one job, so that its inputs stay in the processor's caches
constexpr int64_t kPanel = 64;       // rows of a unit
constexpr int64_t kMostBlocks = 16;  // of a unit
constexpr int64_t kUnitsPerThread = 8;
static_assert(kPanel * kMostBlocks * kBlock <= kBufferFloats, "a unit fits a thread's buffer");

// Rows of one matrix, at most kPanel.
struct Piece {
  const Matrix* matrix;
  const float* bias;
  int64_t first_row, num_rows;
};
static_assert(kMostRows * sizeof(Piece) <= kMostLentBytes, "the pieces of a job can be lent");

struct Task {
  const Tile* tiles;
  const Piece* pieces;  // of the matrices in their order: those of one matrix follow each other
  Rows rows;
  char* y;
  int64_t num_outputs, y_stride, num_blocks, blocks_per_unit, num_pieces;
  Dtype dtype;
  bool add;
};

// Memory for the quantized rows of one thread's calls. Helpers that come late may read it, so it is never freed.
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
  const int64_t inputs = product.matrices[0]->num_inputs, groups = product.matrices[0]->num_groups;
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

// Cut rows [first, first + count) of a product into pieces, and return how many there are.
int64_t cut(const Product& product, int64_t first, int64_t count, Piece* pieces) {
  int64_t found = 0, begin = 0;
  for (int64_t m = 0; m < product.num_matrices && begin < first + count; begin += product.counts[m++]) {
    const int64_t from = begin > first ? begin : first, end = begin + product.counts[m];
    const int64_t to = end < first + count ? end : first + count;
    const float* bias = product.bias ? product.bias + m * product.matrices[m]->num_outputs : nullptr;
    for (int64_t row = from; row < to; row += kPanel) {
      pieces[found++] = {product.matrices[m], bias, row - first, to - row < kPanel ? to - row : kPanel};
    }
  }
  return found;
}

struct Area {
  Piece piece;
  int64_t first_block, num_blocks;
};

Area area_of(const Task& task, int64_t unit) {
  const int64_t block = unit / task.num_pieces * task.blocks_per_unit, rest = task.num_blocks - block;
  return {task.pieces[unit % task.num_pieces], block, rest < task.blocks_per_unit ? rest : task.blocks_per_unit};
}

void compute(const Task& task, int64_t unit, float* buffer) {
  const Area area = area_of(task, unit);
  const int64_t stride = area.num_blocks * kBlock;
  for (int64_t b = 0; b < area.num_blocks; b++) {
    compute_block(task.tiles, *area.piece.matrix, area.first_block + b, task.rows, area.piece.first_row,
                  area.piece.num_rows, buffer + b * kBlock, stride);
  }
}

void store(const Task& task, int64_t unit, const float* buffer) {
  const Area area = area_of(task, unit);
  const int64_t first = area.first_block * kBlock, stride = area.num_blocks * kBlock;
  const int64_t rest = task.num_outputs - first, count = rest < stride ? rest : stride;
  for (int64_t r = 0; r < area.piece.num_rows; r++) {
    const float* from = buffer + r * stride;
    const int64_t start = (area.piece.first_row + r) * task.y_stride + first;
    auto* floats = reinterpret_cast<float*>(task.y) + start;
    auto* halves = reinterpret_cast<uint16_t*>(task.y) + start;
    for (int64_t o = 0; o < count; o++) {
      float value = from[o];
      if (area.piece.bias) value += area.piece.bias[first + o];
      if (task.add) value += task.dtype == kFloat32 ? floats[o] : from_bfloat16(halves[o]);
      if (task.dtype == kFloat32) floats[o] = value;
      else halves[o] = to_bfloat16(value);
    }
  }
}

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

bool multiply(const Product& product, const Path& path, int num_threads) {
  const Matrix& shape = *product.matrices[0];
  const int64_t most_rows = product.num_rows < kMostRows ? product.num_rows : kMostRows;
  if (!reserve(most_rows * shape.num_groups, shape.num_inputs)) return false;
  const int64_t blocks = ceiling(shape.num_outputs, kBlock);
  for (int64_t first = 0; first < product.num_rows; first += kMostRows) {
    const int64_t count = product.num_rows - first < kMostRows ? product.num_rows - first : kMostRows;
    auto* pieces = static_cast<Piece*>(lend(count * sizeof(Piece)));
    if (!pieces) return false;
    quantize_rows(product, path, first, count);
    const int64_t num_pieces = cut(product, first, count, pieces);
    int64_t blocks_per_unit = blocks * (product.num_matrices > 1 ? num_pieces : 1) / (num_threads * kUnitsPerThread);
    blocks_per_unit = blocks_per_unit < 1 ? 1 : blocks_per_unit > kMostBlocks ? kMostBlocks : blocks_per_unit;
    const Task task = {path.tiles,
                       pieces,
                       {scratch.values, scratch.scales, scratch.sums},
                       static_cast<char*>(product.y) + first * product.y_stride * (product.dtype == kFloat32 ? 4 : 2),
                       shape.num_outputs,
                       product.y_stride,
                       blocks,
                       blocks_per_unit,
                       num_pieces,
                       product.dtype,
                       product.add};
    run_job<Task, compute, store>(task, ceiling(blocks, blocks_per_unit) * num_pieces, num_threads);
  }
  return true;
}

}  // namespace lorikeet
