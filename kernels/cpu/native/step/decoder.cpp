#include "decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../matrix.h"
#include "../memory.h"
#include "../pool.h"

namespace lorikeet {
namespace {

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Return the inputs, and below the outputs, of the largest product.
int64_t most_inputs(const Decoder& d) { return larger(larger(d.model.hidden, q_size(d)), d.model.intermediate); }
int64_t most_outputs(const Decoder& d) { return larger(q_size(d) + 2 * kv_size(d), 2 * d.model.intermediate); }
int64_t most_groups(const Decoder& d) { return (most_inputs(d) + kGroup - 1) / kGroup; }
int64_t most_blocks(const Decoder& d) { return (d.model.max_position / kCacheBlock + 1) * d.model.num_tables; }

// Return the rows of a tile: fewer where a row's heads take much of a thread's buffer.
int64_t tile_rows(const Decoder& d) {
  const int64_t fit = kBufferFloats / attention_floats(d.cache, d.model.num_heads / d.cache.num_heads);
  return fit < kTileRows ? fit : kTileRows;
}

bool computes(const Decoder& d) {
  const Model& m = d.model;
  const int64_t row = q_size(d) + 2 * kv_size(d);
  return m.head_dim % 2 == 0 && m.num_heads % m.num_kv_heads == 0 && tile_rows(d) > 0 && row <= kBufferFloats &&
         most_inputs(d) * 2 + most_groups(d) * 2 + 64 <= kBufferFloats;
}

template <typename T>
bool allocate(T** memory, int64_t count) {
  free(*memory);
  const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  *memory = static_cast<T*>(take_memory(64, bytes));
  if (*memory) memset(static_cast<void*>(*memory), 0, bytes);
  return *memory != nullptr;
}

bool has_same_rows(const Decoder& d, const Step& step) {
  if (d.num_rows != step.num_rows || d.num_chunks != step.num_chunks) return false;
  for (int64_t c = 0; c < step.num_chunks; c++) {
    const Chunk &before = d.chunks[c], &after = step.chunks[c];
    if (before.num_rows != after.num_rows || before.adapter != after.adapter) return false;
  }
  return true;
}

int64_t rank_of(const Factors* adapter, int64_t layer, int64_t group) {
  int64_t rank = 0;
  for (int64_t p = kFirstProjection[group]; p < kFirstProjection[group + 1]; p++) {
    rank += adapter[layer * kProjections + p].rank;
  }
  return rank;
}

// Record which products the step's adapters change, and return the most ranks that a row has in one of them.
int64_t note_adapters(Decoder& d, const Step& step) {
  int64_t most = 0;
  const Factors* last = nullptr;
  memset(d.adapts, 0, d.model.num_layers * kGroups);
  for (int64_t c = 0; c < step.num_chunks; c++) {
    const Factors* adapter = step.chunks[c].adapter;
    if (!adapter || adapter == last) continue;
    for (int64_t i = 0; i < d.model.num_layers * kGroups; i++) {
      const int64_t rank = rank_of(adapter, i / kGroups, i % kGroups);
      most = larger(most, rank);
      if (rank) d.adapts[i] = true;
    }
    last = adapter;
  }
  return most;
}

bool reserve_rows(Decoder& d, int64_t rows) {
  if (rows <= d.room_rows) return true;
  d.room_rows = 0;
  if (!allocate(&d.chunks, rows) || !allocate(&d.chunk_of_row, rows) || !allocate(&d.tiles, rows) ||
      !allocate(&d.adapted, rows) || !allocate(&d.x, rows * d.model.hidden) || !allocate(&d.inputs, rows * most_inputs(d)) ||
      !allocate(&d.values, rows * most_groups(d) * kGroup) || !allocate(&d.scales, rows * most_groups(d)) ||
      !allocate(&d.sums, rows * most_groups(d)) ||
      !allocate(&d.out, rows * most_outputs(d)) || !allocate(&d.q, rows * q_size(d)) ||
      !allocate(&d.shrunk, rows * d.room_ranks)) {
    return false;
  }
  d.room_rows = rows;
  return true;
}

// Store the rows of a step, if they differ from those of the last one. Without memory for them, the decoder has no rows
// afterwards, and the next step starts from that.
bool take_rows(Decoder& d, const Step& step) {
  wait_for_helpers();
  d.num_rows = d.num_chunks = d.num_tiles = d.num_adapted = 0;
  const int64_t ranks = note_adapters(d, step);
  if (ranks > d.room_ranks) d.room_ranks = ranks, d.room_rows = 0;
  if (!reserve_rows(d, step.num_rows)) return false;
  const int64_t most = tile_rows(d);
  d.num_rows = step.num_rows, d.num_chunks = step.num_chunks;
  for (int64_t c = 0; c < step.num_chunks; c++) {
    const Chunk& chunk = d.chunks[c] = step.chunks[c];
    for (int64_t row = 0; row < chunk.num_rows; row++) d.chunk_of_row[chunk.first_row + row] = c;
    for (int64_t row = 0; row < chunk.num_rows; row += most) {
      const int64_t rest = chunk.num_rows - row;
      const Piece piece = {c, chunk.first_row + row, rest < most ? rest : most};
      d.tiles[d.num_tiles++] = piece;
      if (chunk.adapter) d.adapted[d.num_adapted++] = piece;
    }
  }
  return true;
}

// Copy the blocks of all chunks. The rest of the memory, which has room for one more sequence, keeps valid numbers of
// blocks.
bool take_blocks(Decoder& d, const Step& step) {
  if (step.num_block_ids + most_blocks(d) > d.room_blocks) {
    wait_for_helpers();
    d.room_blocks = 0;
    const int64_t room = 2 * step.num_block_ids + most_blocks(d);
    if (!allocate(&d.blocks, room)) return false;
    d.room_blocks = room;
  }
  for (int64_t i = 0; i < step.num_block_ids; i++) __atomic_store_n(d.blocks + i, step.blocks[i], __ATOMIC_RELAXED);
  for (int64_t c = 0; c < step.num_chunks; c++) {
    __atomic_store_n(&d.chunks[c].position, step.chunks[c].position, __ATOMIC_RELAXED);
    __atomic_store_n(&d.chunks[c].angle, step.chunks[c].angle, __ATOMIC_RELAXED);
    __atomic_store_n(&d.chunks[c].first_block, step.chunks[c].first_block, __ATOMIC_RELAXED);
    __atomic_store_n(&d.chunks[c].num_blocks, step.chunks[c].num_blocks, __ATOMIC_RELAXED);
  }
  return true;
}

constexpr int64_t kStages = 10;  // of a layer, each of about one job

void compute_stage(const Decoder& d, int64_t l, int64_t stage) {
  const Layer& layer = d.layers[l];
  switch (stage) {
    case 0: return prepare_inputs(d, l, kQkv, layer.input_norm);
    case 1: return multiply_rows(d, l, kQkv, false);
    case 2: return rotate_rows(d, l);
    case 3: return attend_rows(d, l);
    case 4: return prepare_inputs(d, l, kOut, nullptr);
    case 5:
      multiply_rows(d, l, kOut, !layer.attention_norm);
      if (layer.attention_norm) add_normed_rows(d, layer.attention_norm);
      return;
    case 6: return prepare_inputs(d, l, kGateUp, layer.post_norm);
    case 7: return multiply_rows(d, l, kGateUp, false);
    case 8: return prepare_inputs(d, l, kDown, nullptr);
    default:
      multiply_rows(d, l, kDown, !layer.feed_forward_norm);
      if (layer.feed_forward_norm) add_normed_rows(d, layer.feed_forward_norm);
  }
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

void embed(const Decoder& d, const int64_t* tokens) {
  const int64_t hidden = d.model.hidden;
  const float factor = float(d.model.embedding_multiplier);
  for (int64_t row = 0; row < d.num_rows; row++) {
    float* x = d.x + row * hidden;
    dequantize_row(*d.model.embed, tokens[row], x);
    for (int64_t i = 0; i < hidden; i++) x[i] *= factor;
  }
}

}  // namespace

int64_t q_size(const Decoder& d) { return d.model.num_heads * d.model.head_dim; }
int64_t kv_size(const Decoder& d) { return d.model.num_kv_heads * d.model.head_dim; }

Decoder* new_decoder(const Model& model, const Layer* layers, const Path& path) {
  auto* d = static_cast<Decoder*>(calloc(1, sizeof(Decoder)));
  if (!d) return nullptr;
  d->model = model, d->path = path;
  d->cache = {model.num_kv_heads, model.head_dim, Dtype(model.cache_dtype)};
  if (computes(*d) && allocate(&d->layers, model.num_layers) && allocate(&d->adapts, model.num_layers * kGroups)) {
    memcpy(d->layers, layers, model.num_layers * sizeof(Layer));
    return d;
  }
  free_decoder(d);
  return nullptr;
}

void free_decoder(Decoder* d) {
  wait_for_helpers();
  void* all[] = {d->layers, d->chunks, d->chunk_of_row, d->blocks, d->tiles, d->adapted, d->adapts, d->x,
                 d->inputs, d->values, d->scales,       d->sums,   d->shrunk, d->out,     d->q};
  for (void* memory : all) free(memory);
  free(d);
}

bool begin(Decoder& d, const Step& step) {
  d.next_stage = 0;
  if (!has_same_rows(d, step) && !take_rows(d, step)) return false;
  if (!take_blocks(d, step)) return false;
  embed(d, step.tokens);
  return true;
}

bool go_on(Decoder& d, const Step& step, int num_threads, const int32_t* pause, double seconds) {
  const double end = seconds < INFINITY ? now() + seconds : INFINITY;
  d.num_threads = num_threads;
  while (d.next_stage < d.model.num_layers * kStages) {
    compute_stage(d, d.next_stage / kStages, d.next_stage % kStages);
    d.next_stage++;
    if ((pause && __atomic_load_n(pause, __ATOMIC_RELAXED)) || (end < INFINITY && now() >= end)) {
      if (d.next_stage < d.model.num_layers * kStages) return false;
    }
  }
  norm_outputs(d, step);
  return true;
}

}  // namespace lorikeet
