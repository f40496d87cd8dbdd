#include "adapt.h"

#include <stdlib.h>
#include <string.h>

#include "../job.h"
#include "../memory.h"

namespace lorikeet {
namespace {

constexpr int64_t kMostRows = 512;  // of one job
constexpr int64_t kTileRows = 16;   // of one adapter and expert, which shrink together
constexpr int64_t kLeastColumns = 256, kMostColumns = 3072;  // of outputs of a unit
constexpr int64_t kUnitsPerThread = 8;
static_assert(kTileRows * kMostColumns <= kBufferFloats - kFirstFloats, "a unit fits a thread's buffer beside a shrink");

// A row that has an adapter, and its pair: expert * 2^32 + adapter.
struct Row {
  int64_t pair, row;
};

// Rows of one pair: places [first, first + count) among the rows of the job.
struct Piece {
  int64_t expert, adapter, first, count;
};

// The task of a job. It is in lent memory, which stays as it is while any helper reads it.
struct Call {
  const RowKernels* kernels;
  AdaptedExperts experts;
  const float* x;  // [rows of the job][width]
  float* shrunk;   // [rows of the job][most_ranks]
  int64_t most_ranks, num_pieces, columns, num_columns;
  Piece* pieces;
  int64_t* row_of;  // in y
};
static_assert(sizeof(Call) + kMostRows * (sizeof(Piece) + sizeof(int64_t)) <= kMostLentBytes, "a call can be lent");

struct Task {
  const Call* call;
};

// Memory of one thread's calls. Helpers that come late may read it, so it is never freed.
struct Scratch {
  float* x;
  float* shrunk;
  int64_t width, ranks;
};
thread_local Scratch scratch;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool reserve(int64_t width, int64_t ranks) {
  if (scratch.width < width) {
    auto* x = static_cast<float*>(take_memory(64, ceiling(kMostRows * width * sizeof(float), 64) * 64));
    if (!x) return false;
    scratch.x = x, scratch.width = width;
  }
  if (scratch.ranks < ranks) {
    auto* shrunk = static_cast<float*>(take_memory(64, ceiling(kMostRows * ranks * sizeof(float), 64) * 64));
    if (!shrunk) return false;
    scratch.shrunk = shrunk, scratch.ranks = ranks;
  }
  return true;
}

const char* at(const void* numbers, Dtype dtype, int64_t place) {
  return static_cast<const char*>(numbers) + place * bytes_of(dtype);
}

int64_t ranks_of(const ExpertFactors& factors) { return factors.rank[0] + factors.rank[1]; }

void compute_shrink(const Call& call, int64_t unit, float* buffer) {
  const AdaptedExperts& e = call.experts;
  const Piece& piece = call.pieces[unit];
  const ExpertFactors& factors = e.factors[piece.adapter];
  const Dtype dtype = Dtype(factors.dtype);
  const float* x = call.x + piece.first * e.width;
  int64_t place = piece.expert * ranks_of(factors) * e.width;
  for (int64_t p = 0; p < e.num_projections; p++) {
    call.kernels->shrink(at(factors.a, dtype, place), dtype, x, e.width, piece.count, e.width, factors.rank[p],
                         float(factors.scaling[p]), buffer, call.most_ranks);
    place += factors.rank[p] * e.width, buffer += factors.rank[p];
  }
}

// A piece of rows, and some outputs of one projection. column: the first of these outputs in y.
struct Area {
  const Piece* piece;
  int64_t projection, first, count, column;
};

Area area_of(const Call& call, int64_t unit) {
  const AdaptedExperts& e = call.experts;
  const Piece* piece = call.pieces + unit / call.num_columns;
  int64_t part = unit % call.num_columns, column = 0, p = 0;
  for (int64_t parts; part >= (parts = ceiling(e.num_outputs[p], call.columns)); p++) part -= parts, column += e.num_outputs[p];
  const int64_t first = part * call.columns, rest = e.num_outputs[p] - first;
  return {piece, p, first, rest < call.columns ? rest : call.columns, column + first};
}

void compute(const Task& task, int64_t unit, float* buffer) {
  const Call& call = *task.call;
  if (unit < call.num_pieces) return compute_shrink(call, unit, buffer);
  const Area area = area_of(call, unit - call.num_pieces);
  memset(buffer, 0, area.piece->count * area.count * sizeof(float));
}

void amend(const Task& task, int64_t unit, float* buffer) {
  const Call& call = *task.call;
  const AdaptedExperts& e = call.experts;
  const Area area = area_of(call, unit - call.num_pieces);
  const ExpertFactors& factors = e.factors[area.piece->adapter];
  const Dtype dtype = Dtype(factors.dtype);
  const int64_t rank = factors.rank[area.projection], outputs = e.num_outputs[area.projection];
  if (!rank) return;
  const char* b = at(factors.b[area.projection], dtype, area.piece->expert * rank * outputs + area.first);
  for (int64_t r = 0; r < area.piece->count; r++) {
    const float* h = call.shrunk + (area.piece->first + r) * call.most_ranks + (area.projection ? factors.rank[0] : 0);
    call.kernels->expand(b, dtype, outputs, area.count, rank, h, buffer + r * area.count);
  }
}

void store(const Task& task, int64_t unit, const float* buffer) {
  const Call& call = *task.call;
  const AdaptedExperts& e = call.experts;
  if (unit < call.num_pieces) {
    const Piece& piece = call.pieces[unit];
    memcpy(call.shrunk + piece.first * call.most_ranks, buffer, piece.count * call.most_ranks * sizeof(float));
    return;
  }
  const Area area = area_of(call, unit - call.num_pieces);
  for (int64_t r = 0; r < area.piece->count; r++) {
    const float* from = buffer + r * area.count;
    const int64_t row = call.row_of[area.piece->first + r];
    const int64_t start = row * e.y_stride + area.column;
    auto* floats = static_cast<float*>(e.y) + start;
    auto* halves = static_cast<uint16_t*>(e.y) + start;
    for (int64_t c = 0; c < area.count; c++) {
      if (e.dtype == kFloat32) floats[c] += from[c];
      else halves[c] = to_bfloat16(from_bfloat16(halves[c]) + from[c]);
    }
  }
}

int by_pair(const void* first, const void* second) {
  const Row &a = *static_cast<const Row*>(first), &b = *static_cast<const Row*>(second);
  if (a.pair != b.pair) return a.pair < b.pair ? -1 : 1;
  return a.row < b.row ? -1 : 1;
}

// Find the next rows with adapters, at most kMostRows, sorted by expert, then adapter. Returns their number, and
// advances row, expert and end, the row behind the expert's last one.
int64_t take_rows(const AdaptedExperts& e, int64_t& row, int64_t& expert, int64_t& end, Row* rows) {
  int64_t found = 0;
  for (; row < e.num_rows && found < kMostRows; row++) {
    while (row >= end) end += e.counts[++expert];
    const int64_t adapter = e.adapters[e.tokens[row]];
    if (adapter >= 0 && ranks_of(e.factors[adapter])) rows[found++] = {expert << 32 | adapter, row};
  }
  qsort(rows, found, sizeof(Row), by_pair);
  return found;
}

void copy_inputs(Call& call, const Row* rows, int64_t count) {
  const AdaptedExperts& e = call.experts;
  for (int64_t i = 0; i < count; i++) {
    float* to = scratch.x + i * e.width;
    const char* from = at(e.x, Dtype(e.dtype), rows[i].row * e.x_stride);
    call.row_of[i] = rows[i].row;
    if (e.dtype == kFloat32) {
      memcpy(to, from, e.width * sizeof(float));
    } else {
      for (int64_t c = 0; c < e.width; c++) to[c] = from_bfloat16(reinterpret_cast<const uint16_t*>(from)[c]);
    }
  }
}

int64_t cut(const Row* rows, int64_t count, int64_t most_rows, Piece* pieces) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    if (i && rows[i].pair == rows[i - 1].pair && pieces[found - 1].count < most_rows) pieces[found - 1].count++;
    else pieces[found++] = {rows[i].pair >> 32, rows[i].pair & 0xffffffff, i, 1};
  }
  return found;
}

}  // namespace

bool adapt_experts(const AdaptedExperts& e, const Path& path, int num_threads) {
  int64_t outputs = 0, ranks = 1;
  for (int64_t p = 0; p < e.num_projections; p++) outputs += e.num_outputs[p];
  for (int64_t g = 0; g < e.num_adapters; g++) ranks = ranks_of(e.factors[g]) > ranks ? ranks_of(e.factors[g]) : ranks;
  if (ranks > kFirstFloats || !reserve(e.width, ranks)) return false;
  const int64_t most_rows = kFirstFloats / ranks < kTileRows ? kFirstFloats / ranks : kTileRows;
  Row rows[kMostRows];
  for (int64_t row = 0, expert = -1, end = 0; row < e.num_rows;) {
    const int64_t count = take_rows(e, row, expert, end, rows);
    if (!count) break;
    auto* call = static_cast<Call*>(lend(sizeof(Call) + count * (sizeof(Piece) + sizeof(int64_t))));
    if (!call) return false;
    call->pieces = reinterpret_cast<Piece*>(call + 1), call->row_of = reinterpret_cast<int64_t*>(call->pieces + count);
    call->kernels = path.rows, call->experts = e, call->x = scratch.x, call->shrunk = scratch.shrunk;
    call->most_ranks = ranks;
    copy_inputs(*call, rows, count);
    call->num_pieces = cut(rows, count, most_rows, call->pieces);
    const int64_t wanted = outputs * call->num_pieces / (num_threads * kUnitsPerThread) / 16 * 16;
    call->columns = wanted < kLeastColumns ? kLeastColumns : wanted > kMostColumns ? kMostColumns : wanted;
    call->num_columns = 0;
    for (int64_t p = 0; p < e.num_projections; p++) call->num_columns += ceiling(e.num_outputs[p], call->columns);
    const int64_t units = call->num_pieces * (1 + call->num_columns);
    if (units > kMaxUnits) return false;
    run_amended_job<Task, compute, amend, store>({call}, call->num_pieces, units, num_threads);
  }
  return true;
}

}  // namespace lorikeet
