// A decoder that computes steps: its weights, and memory for the numbers of one step.
//
// Helpers that come late (`pool.h`) may read anything here, and what it points to. So memory is freed, and the rows of a
// step change their places or adapters, only after `wait_for_helpers`. From one such change to the next positions and
// blocks alone change, number by number, and whatever mixture of old and new ones is read stays within bounds.
#pragma once

#include "../processor.h"
#include "model.h"

namespace lorikeet {

constexpr int64_t kTileRows = 16;  // of a prompt, which attend or shrink together
constexpr int64_t kShrinkSplits = 2;

// Some rows of one chunk.
struct Piece {
  int64_t chunk, first_row, num_rows;
};

struct Decoder {
  Model model;
  Layer* layers;
  Path path;
  CacheShape cache;
  int64_t num_threads;
  int64_t next_stage;  // of the step that was begun; 0: nothing of it is computed

  // The rows of the step.
  int64_t num_rows, num_chunks, num_tiles, num_adapted, num_block_ids;
  int64_t room_rows, room_blocks;  // that there is memory for
  Chunk* chunks;
  int64_t* chunk_of_row;
  int32_t* blocks;
  Piece *tiles, *adapted;  // of all chunks, and of those with an adapter
  int64_t room_ranks;      // of one row's shrunk inputs
  bool* adapts;            // [num_layers][kGroups]: some row's adapter does

  float* x;           // [rows][hidden], the residual stream
  float* inputs;      // [rows][in of the next product]
  int16_t* values;    // the same, quantized
  float* scales;
  float* sums;
  float* shrunk;      // [rows][room_ranks]
  float* out;         // [rows][out of the last product]
  float* q;           // [rows][num_heads * head_dim], rotated and scaled
};

int64_t q_size(const Decoder& d);
int64_t kv_size(const Decoder& d);

// Make a decoder that computes on a path. Returns null if there is no memory, or if these kernels do not compute a
// model of this shape.
Decoder* new_decoder(const Model& model, const Layer* layers, const Path& path);

void free_decoder(Decoder* decoder);

// Begin a step: take its rows, of which nothing is computed yet. Returns false if there is no memory.
bool begin(Decoder& decoder, const Step& step);

// Go on with the step that was begun, with at most num_threads threads, stage by stage. Returns true once the step is
// done, and false where it pauses: after any stage, if `pause` is not null and not 0, or so many seconds are over. Steps
// of other decoders over the same cache may be computed in between.
bool go_on(Decoder& decoder, const Step& step, int num_threads, const int32_t* pause, double seconds);

// Jobs of one step, each for all its rows.

// The source of a product's input.
enum Source : int64_t { kNormed = 0, kAttended = 1, kGated = 2 };

// Compute the input of a group's product, quantized, and in float32 too if adapters or the next job read that.
void prepare_inputs(const Decoder& d, int64_t layer, Group group, const float* norm);

// Rotate queries and keys of `out`; write keys and values to the cache, and queries, scaled, to `q`.
void rotate_rows(const Decoder& d, int64_t layer);

// Compute attention of the queries `q`, and write it to `inputs`.
void attend_rows(const Decoder& d, int64_t layer);

// Write a group's product with the adapters' products to `out`, or add it to `x`.
void multiply_rows(const Decoder& d, int64_t layer, Group group, bool add_to_x);

// Add the norm of `out` to `x`.
void add_normed_rows(const Decoder& d, const float* weight);

// Write the norm of rows of `x` to hidden.
void norm_outputs(const Decoder& d, const Step& step);

}  // namespace lorikeet
