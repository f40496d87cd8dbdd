// The jobs of a group's product: shrinks of adapters, then the frozen matrix with what adapters add.
#include <string.h>

#include "../job.h"
#include "decoder.h"

namespace lorikeet {
namespace {

constexpr int64_t kPanel = 64;       // rows of a unit
constexpr int64_t kMostBlocks = 16;  // of outputs
constexpr int64_t kUnitsPerThread = 8;
constexpr int64_t kLine = 64;        // bytes of a cache line
static_assert(kPanel * kMostBlocks * kBlock <= kBufferFloats - kFirstFloats, "a unit fits a thread's buffer beside a shrink");

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct ProductTask {
  const Decoder* d;
  const Matrix* matrix;
  const float* bias;
  float* y;
  int64_t num_shrinks, blocks_per_unit, num_blocks, num_panels, layer;
  Group group;
  bool adds;
};

int64_t projections(Group group) { return kFirstProjection[group + 1] - kFirstProjection[group]; }

// Return where the ranks of a group's projection begin in a row of `shrunk`.
int64_t first_rank(const Factors* factors, Group group, int64_t projection) {
  int64_t first = 0;
  for (int64_t p = kFirstProjection[group]; p < projection; p++) first += factors[p].rank;
  return first;
}

// Some ranks of a projection, for a piece of rows.
struct Ranks {
  const Piece* piece;
  const Factors* factors;
  int64_t first, count, place;  // of the projection's ranks; place: in `shrunk`
};

Ranks ranks_of(const ProductTask& task, int64_t unit) {
  const Decoder& d = *task.d;
  const int64_t split = unit % kShrinkSplits, rest = unit / kShrinkSplits;
  const int64_t projection = kFirstProjection[task.group] + rest % projections(task.group);
  const Piece* piece = d.adapted + rest / projections(task.group);
  const Factors* all = d.chunks[piece->chunk].adapter + task.layer * kProjections;
  const int64_t rank = all[projection].rank, part = ceiling(ceiling(rank, kShrinkSplits), 4) * 4;
  const int64_t first = split * part < rank ? split * part : rank;
  const int64_t count = rank - first < part ? rank - first : part;
  return {piece, all + projection, first, count, first_rank(all, task.group, projection) + first};
}

void compute_shrink(const ProductTask& task, int64_t unit, float* buffer) {
  const Decoder& d = *task.d;
  const Ranks ranks = ranks_of(task, unit);
  const Dtype dtype = Dtype(ranks.factors->dtype);
  const int64_t width = task.matrix->num_inputs;
  const char* a = static_cast<const char*>(ranks.factors->a) + ranks.first * width * bytes_of(dtype);
  d.path.rows->shrink(a, dtype, d.inputs + ranks.piece->first_row * width, width, ranks.piece->num_rows, width,
                      ranks.count, float(ranks.factors->scaling), buffer, ranks.count);
}

void store_shrink(const ProductTask& task, int64_t unit, const float* buffer) {
  const Decoder& d = *task.d;
  const Ranks ranks = ranks_of(task, unit);
  for (int64_t row = 0; row < ranks.piece->num_rows; row++) {
    float* to = d.shrunk + (ranks.piece->first_row + row) * d.room_ranks + ranks.place;
    memcpy(to, buffer + row * ranks.count, ranks.count * sizeof(float));
  }
}

struct Area {
  int64_t first_row, num_rows, first_block, num_blocks;
};

Area area_of(const ProductTask& task, int64_t unit) {
  const int64_t row = unit % task.num_panels * kPanel, block = unit / task.num_panels * task.blocks_per_unit;
  const int64_t rows = task.d->num_rows - row, blocks = task.num_blocks - block;
  return {row, rows < kPanel ? rows : kPanel, block, blocks < task.blocks_per_unit ? blocks : task.blocks_per_unit};
}

int64_t outputs_of(const Decoder& d, int64_t projection) {
  switch (projection) {
    case 0: return q_size(d);
    case 1: case 2: return kv_size(d);
    case 4: case 5: return d.model.intermediate;
    default: return d.model.hidden;
  }
}

// Add the product of a row's adapter to its outputs [first, last).
void expand_row(const ProductTask& task, int64_t row, int64_t first, int64_t last, float* out) {
  const Decoder& d = *task.d;
  const Factors* factors = d.chunks[d.chunk_of_row[row]].adapter;
  if (!factors) return;
  factors += task.layer * kProjections;
  const float* h = d.shrunk + row * d.room_ranks;
  int64_t start = 0;
  for (int64_t p = kFirstProjection[task.group]; p < kFirstProjection[task.group + 1]; p++) {
    const int64_t size = outputs_of(d, p), from = first > start ? first : start;
    const int64_t to = last < start + size ? last : start + size;
    if (factors[p].rank && from < to) {
      const Dtype dtype = Dtype(factors[p].dtype);
      const char* b = static_cast<const char*>(factors[p].b) + (from - start) * bytes_of(dtype);
      d.path.rows->expand(b, dtype, size, to - from, factors[p].rank, h, out + from - first);
    }
    h += factors[p].rank, start += size;
  }
}

// Prefetch what `expand_row` reads: pieces of the rows of B, too short for the processor to prefetch by itself.
void prefetch_factors(const ProductTask& task, int64_t row, int64_t first, int64_t last) {
  const Decoder& d = *task.d;
  const Factors* factors = d.chunks[d.chunk_of_row[row]].adapter;
  if (!factors) return;
  factors += task.layer * kProjections;
  int64_t start = 0;
  for (int64_t p = kFirstProjection[task.group]; p < kFirstProjection[task.group + 1]; p++) {
    const int64_t size = outputs_of(d, p), from = first > start ? first : start;
    const int64_t to = last < start + size ? last : start + size;
    if (from < to) {
      const int64_t bytes = bytes_of(Dtype(factors[p].dtype));
      const char* b = static_cast<const char*>(factors[p].b) + (from - start) * bytes;
      for (int64_t k = 0; k < factors[p].rank; k++, b += size * bytes) {
        for (int64_t i = 0; i < (to - from) * bytes; i += kLine) __builtin_prefetch(b + i);
      }
    }
    start += size;
  }
}

void compute_product(const ProductTask& task, int64_t unit, float* buffer) {
  const Decoder& d = *task.d;
  const Area area = area_of(task, unit);
  const int64_t stride = area.num_blocks * kBlock, first = area.first_block * kBlock;
  const int64_t rest = task.matrix->num_outputs - first, count = rest < stride ? rest : stride;
  for (int64_t r = 0, last = -1; task.num_shrinks && r < area.num_rows; r++) {
    const int64_t row = area.first_row + r, chunk = d.chunk_of_row[row];
    if (chunk != last) prefetch_factors(task, row, first, first + count);
    last = chunk;
  }
  for (int64_t b = 0; b < area.num_blocks; b++) {
    compute_block(d.path.tiles, *task.matrix, area.first_block + b, {d.values, d.scales, d.sums}, area.first_row,
                  area.num_rows, buffer + b * kBlock, stride);
  }
  for (int64_t r = 0; r < area.num_rows; r++) {
    float* out = buffer + r * stride;
    for (int64_t o = 0; task.bias && o < count; o++) out[o] += task.bias[first + o];
  }
}

void expand_product(const ProductTask& task, int64_t unit, float* buffer) {
  const Area area = area_of(task, unit);
  const int64_t stride = area.num_blocks * kBlock, first = area.first_block * kBlock;
  const int64_t rest = task.matrix->num_outputs - first, count = rest < stride ? rest : stride;
  for (int64_t r = 0; r < area.num_rows; r++) expand_row(task, area.first_row + r, first, first + count, buffer + r * stride);
}

void store_product(const ProductTask& task, int64_t unit, const float* buffer) {
  const Area area = area_of(task, unit);
  const int64_t outputs = task.matrix->num_outputs, stride = area.num_blocks * kBlock, first = area.first_block * kBlock;
  const int64_t rest = outputs - first, count = rest < stride ? rest : stride;
  for (int64_t r = 0; r < area.num_rows; r++) {
    const float* from = buffer + r * stride;
    float* to = task.y + (area.first_row + r) * outputs + first;
    if (task.adds) {
      for (int64_t o = 0; o < count; o++) to[o] += from[o];
    } else {
      memcpy(to, from, count * sizeof(float));
    }
  }
}

// The units of a job of shrinks and products; shrinks come first.

void compute(const ProductTask& task, int64_t unit, float* buffer) {
  if (unit < task.num_shrinks) compute_shrink(task, unit, buffer);
  else compute_product(task, unit - task.num_shrinks, buffer);
}

void amend(const ProductTask& task, int64_t unit, float* buffer) { expand_product(task, unit - task.num_shrinks, buffer); }

void store(const ProductTask& task, int64_t unit, const float* buffer) {
  if (unit < task.num_shrinks) store_shrink(task, unit, buffer);
  else store_product(task, unit - task.num_shrinks, buffer);
}

// The units of the product alone, after its shrinks.
void compute_expanded(const ProductTask& task, int64_t unit, float* buffer) {
  compute_product(task, unit, buffer);
  expand_product(task, unit, buffer);
}

}  // namespace

void multiply_rows(const Decoder& d, int64_t layer, Group group, bool add_to_x) {
  const Matrix& matrix = *d.layers[layer].products[group];
  const int64_t blocks = ceiling(matrix.num_outputs, kBlock), panels = ceiling(d.num_rows, kPanel);
  int64_t blocks_per_unit = blocks / (d.num_threads * kUnitsPerThread);
  blocks_per_unit = blocks_per_unit < 1 ? 1 : blocks_per_unit > kMostBlocks ? kMostBlocks : blocks_per_unit;
  const int64_t units = ceiling(blocks, blocks_per_unit) * panels;
  const bool adapts = d.adapts[layer * kGroups + group];
  const int64_t shrinks = adapts ? d.num_adapted * projections(group) * kShrinkSplits : 0;
  const ProductTask task = {&d,      &matrix,         d.layers[layer].biases[group], add_to_x ? d.x : d.out,
                            shrinks, blocks_per_unit, blocks, panels, layer, group, add_to_x};
  if (!adapts) {
    run_job<ProductTask, compute_product, store_product>(task, units, d.num_threads);
  } else if (shrinks + units <= kMaxUnits && d.room_ranks * kTileRows <= kFirstFloats) {
    run_amended_job<ProductTask, compute, amend, store>(task, shrinks, shrinks + units, d.num_threads);
  } else {
    run_job<ProductTask, compute_shrink, store_shrink>(task, shrinks, d.num_threads);
    run_job<ProductTask, compute_expanded, store_product>(task, units, d.num_threads);
  }
}

}  // namespace lorikeet
