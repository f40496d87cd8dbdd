// The job of attention: a unit is a tile of rows and one head of keys and values.
#include <string.h>

#include "../job.h"
#include "decoder.h"

namespace lorikeet {
namespace {

struct Task {
  const Decoder* d;
  const Layer* layer;
};

void compute(const Task& task, int64_t unit, float* buffer) {
  const Decoder& d = *task.d;
  const Piece& piece = d.tiles[unit / d.cache.num_heads];
  const Chunk& chunk = d.chunks[piece.chunk];
  const int64_t head = unit % d.cache.num_heads, group = d.model.num_heads / d.cache.num_heads;
  const AttentionTile tile = {d.q + piece.first_row * q_size(d) + head * group * d.model.head_dim,
                              q_size(d),
                              piece.num_rows,
                              group,
                              chunk.position + piece.first_row - chunk.first_row,
                              task.layer->window,
                              float(d.model.softcap),
                              task.layer->cache,
                              d.cache,
                              head,
                              d.blocks + chunk.first_block + task.layer->table * chunk.num_blocks,
                              chunk.num_blocks};
  d.path.rows->attend(tile, buffer);
}

void store(const Task& task, int64_t unit, const float* buffer) {
  const Decoder& d = *task.d;
  const Piece& piece = d.tiles[unit / d.cache.num_heads];
  const int64_t head = unit % d.cache.num_heads, group = d.model.num_heads / d.cache.num_heads;
  const int64_t size = d.model.head_dim, padded = padded_dim(d.cache);
  for (int64_t row = 0; row < piece.num_rows; row++) {
    float* to = d.inputs + (piece.first_row + row) * q_size(d) + head * group * size;
    for (int64_t g = 0; g < group; g++) memcpy(to + g * size, buffer + (row * group + g) * padded, size * sizeof(float));
  }
}

}  // namespace

void attend_rows(const Decoder& d, int64_t layer) {
  const Task task = {&d, d.layers + layer};
  run_job<Task, compute, store>(task, d.num_tiles * d.cache.num_heads, d.num_threads);
}

}  // namespace lorikeet
