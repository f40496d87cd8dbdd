// A decoder's weights and one step's rows, as `kernels.cpu.decoder` passes them: plain structs of 8-byte fields.
#pragma once

#include "../product.h"
#include "../rows/kernels.h"

namespace lorikeet {

enum Group : int64_t { kQkv = 0, kOut = 1, kGateUp = 2, kDown = 3 };

constexpr int64_t kGroups = 4;
constexpr int64_t kProjections = 7;  // q, k, v, o, gate, up, down
constexpr int64_t kFirstProjection[kGroups + 1] = {0, 3, 4, 6, 7};  // of each group

// An adapter's matrices for one projection of one layer, which add scaling * (x a^T) b. a [rank][in], b [rank][out].
// rank 0: the adapter adds nothing.
struct Factors {
  const void* a;
  const void* b;
  int64_t rank;
  double scaling;
  int64_t dtype;  // of a and b
};

// Norms, biases and angles are in float32, and null where the model has none. biases: the bias of each group's product.
struct Layer {
  const Matrix* products[kGroups];
  const float* biases[kGroups];
  const float *input_norm, *q_norm, *k_norm, *attention_norm, *post_norm, *feed_forward_norm;
  const float *cos, *sin;  // [rows of angles][head_dim / 2], null where a layer does not rotate
  void* cache;             // [num_blocks], see CacheShape
  int64_t window;          // 0: every position sees all before it
  int64_t table;           // of those of each chunk, the one that has the blocks of this layer
};

struct Model {
  int64_t num_layers, num_tables, hidden, intermediate, num_heads, num_kv_heads, head_dim, max_position;
  const Matrix* embed;  // [vocabulary][hidden]
  const float* norm;
  int64_t cache_dtype, activation;
  int64_t has_whole_norms;     // q_norm and k_norm are of all heads together, not of each
  const float* query_factors;  // [max_position], of queries at each position; null for 1
  double eps, embedding_multiplier, query_multiplier, residual_multiplier;
  double softcap;  // 0: scores are not bounded
};

// Rows [first_row, first_row + num_rows) of a step: consecutive positions of one sequence, whose blocks are
// num_tables times num_blocks numbers from first_block, table by table. angle: the row of the first position's angles.
// adapter: [num_layers][kProjections], or null.
struct Chunk {
  int64_t first_row, num_rows, position, angle, first_block, num_blocks;
  const Factors* adapter;
};

// The input and the output of one step. Chunks lie in the order of their rows. hidden [num_outputs][hidden]: the memory
// that the rows of output_rows are written to.
struct Step {
  const int64_t* tokens;
  const Chunk* chunks;
  const int32_t* blocks;
  const int64_t* output_rows;
  float* hidden;
  int64_t num_rows, num_chunks, num_block_ids, num_outputs;
};

}  // namespace lorikeet
