// Jobs that take row by row: norms, the inputs of products, rotation and the cache.
#include <math.h>
#include <string.h>

#include "../job.h"
#include "decoder.h"

namespace lorikeet {
namespace {

struct InputTask {
  const Decoder* d;
  Source source;
  const float* norm;
  int64_t width, num_groups;
  float factor;
  bool keeps_floats;
};

// Return where, in floats, a buffer has the quantized values, their scales and their sums, after [width] floats.
int64_t values_place(const InputTask& task) { return (task.width + 15) / 16 * 16; }
int64_t scales_place(const InputTask& task) { return values_place(task) + task.num_groups * kGroup / 2; }
int64_t sums_place(const InputTask& task) { return scales_place(task) + task.num_groups; }

void compute_input(const InputTask& task, int64_t row, float* buffer) {
  const Decoder& d = *task.d;
  const RowKernels& kernels = *d.path.rows;
  if (task.source == kNormed && !task.norm) {
    memcpy(buffer, d.x + row * d.model.hidden, task.width * sizeof(float));
  } else if (task.source == kNormed) {
    kernels.norm(d.x + row * d.model.hidden, task.norm, float(d.model.eps), task.width, buffer);
  } else if (task.source == kGated) {
    const float* gate_up = d.out + row * 2 * task.width;
    kernels.gate(gate_up, task.width, Activation(d.model.activation), task.factor, buffer);
  } else {
    const float* attended = d.inputs + row * task.width;
    for (int64_t i = 0; i < task.width; i++) buffer[i] = attended[i] * task.factor;
  }
  auto* values = reinterpret_cast<int16_t*>(buffer + values_place(task));
  d.path.quantize_row(buffer, task.width, values, buffer + scales_place(task), buffer + sums_place(task));
}

void store_input(const InputTask& task, int64_t row, const float* buffer) {
  const Decoder& d = *task.d;
  const int64_t groups = task.num_groups;
  memcpy(d.values + row * groups * kGroup, buffer + values_place(task), groups * kGroup * sizeof(int16_t));
  memcpy(d.scales + row * groups, buffer + scales_place(task), groups * sizeof(float));
  memcpy(d.sums + row * groups, buffer + sums_place(task), groups * sizeof(float));
  if (task.keeps_floats) memcpy(d.inputs + row * task.width, buffer, task.width * sizeof(float));
}

struct RotateTask {
  const Decoder* d;
  const Layer* layer;
};

void compute_rotation(const RotateTask& task, int64_t row, float* buffer) {
  const Decoder& d = *task.d;
  const Model& model = d.model;
  const RowKernels& kernels = *d.path.rows;
  const int64_t size = model.head_dim, total = q_size(d) + 2 * kv_size(d);
  memcpy(buffer, d.out + row * total, total * sizeof(float));
  const Chunk& chunk = d.chunks[d.chunk_of_row[row]];
  const int64_t angle = (chunk.angle + row - chunk.first_row) * (size / 2);
  if (model.has_whole_norms) {
    kernels.norm(buffer, task.layer->q_norm, float(model.eps), q_size(d), buffer);
    kernels.norm(buffer + q_size(d), task.layer->k_norm, float(model.eps), kv_size(d), buffer + q_size(d));
  }
  for (int64_t h = 0; h < model.num_heads + model.num_kv_heads; h++) {
    float* head = buffer + h * size;
    const bool is_query = h < model.num_heads;
    const float* norm = is_query ? task.layer->q_norm : task.layer->k_norm;
    if (norm && !model.has_whole_norms) kernels.norm(head, norm, float(model.eps), size, head);
    if (task.layer->cos) kernels.rotate(head, task.layer->cos + angle, task.layer->sin + angle, size);
  }
  // A norm of queries has the factor of the model in its weight.
  double factor_of_model = (task.layer->q_norm ? 1.0 : model.query_multiplier) / sqrt(double(size));
  if (model.query_factors) factor_of_model *= model.query_factors[chunk.position + row - chunk.first_row];
  const float factor = float(factor_of_model);
  for (int64_t i = 0; i < q_size(d); i++) buffer[i] *= factor;
}

void put(float* to, float x) { *to = isnan(x) ? 0.0f : isinf(x) ? copysignf(3.40282347e38f, x) : x; }

void put(uint16_t* to, float x) {
  const uint16_t half = to_bfloat16(x);
  const bool is_finite = (half & 0x7f80) != 0x7f80;
  *to = is_finite ? half : isnan(x) ? 0 : (half & 0x8000) | 0x7f7f;
}

// As `kernels.kv_cache`: a block is read, at weight 0, by its next owner, so NaN becomes 0 and an infinity the largest
// number.
template <typename T>
void write_cache(const Decoder& d, T* cache, int64_t block, int64_t offset, const float* keys, const float* values) {
  const int64_t size = d.model.head_dim, padded = padded_dim(d.cache);
  for (int64_t h = 0; h < d.model.num_kv_heads; h++, keys += size, values += size) {
    T* head = cache + block * block_size(d.cache) + h * head_size(d.cache);
    for (int64_t i = 0; i < size; i++) put(head + i * kCacheBlock + offset, keys[i]);
    head += kCacheBlock * size + offset * padded;
    for (int64_t i = 0; i < size; i++) put(head + i, values[i]);
  }
}

void store_rotation(const RotateTask& task, int64_t row, const float* buffer) {
  const Decoder& d = *task.d;
  const Chunk& chunk = d.chunks[d.chunk_of_row[row]];
  const int64_t position = chunk.position + row - chunk.first_row;
  const int64_t first_block = chunk.first_block + task.layer->table * chunk.num_blocks;
  const int64_t block = d.blocks[first_block + position / kCacheBlock], offset = position % kCacheBlock;
  memcpy(d.q + row * q_size(d), buffer, q_size(d) * sizeof(float));
  const float *keys = buffer + q_size(d), *values = keys + kv_size(d);
  if (d.cache.dtype == kFloat32) write_cache(d, static_cast<float*>(task.layer->cache), block, offset, keys, values);
  else write_cache(d, static_cast<uint16_t*>(task.layer->cache), block, offset, keys, values);
}

struct NormTask {
  const Decoder* d;
  const float* weight;
  const int64_t* output_rows;  // read by `store` of a job that goes on
  float* hidden;
};

void compute_norm(const NormTask& task, int64_t row, float* buffer) {
  const Decoder& d = *task.d;
  d.path.rows->norm(d.out + row * d.model.hidden, task.weight, float(d.model.eps), d.model.hidden, buffer);
}

void store_norm(const NormTask& task, int64_t row, const float* buffer) {
  float* x = task.d->x + row * task.d->model.hidden;
  for (int64_t i = 0; i < task.d->model.hidden; i++) x[i] += buffer[i];
}

}  // namespace

void prepare_inputs(const Decoder& d, int64_t layer, Group group, const float* norm) {
  const Matrix& matrix = *d.layers[layer].products[group];
  const Source source = group == kOut ? kAttended : group == kDown ? kGated : kNormed;
  const float factor = source == kNormed ? 1.0f : float(d.model.residual_multiplier);
  const bool keeps_floats = d.adapts[layer * kGroups + group] && (source != kAttended || factor != 1.0f);
  const InputTask task = {&d, source, norm, matrix.num_inputs, matrix.num_groups, factor, keeps_floats};
  run_job<InputTask, compute_input, store_input>(task, d.num_rows, d.num_threads);
}

void rotate_rows(const Decoder& d, int64_t layer) {
  const RotateTask task = {&d, d.layers + layer};
  run_job<RotateTask, compute_rotation, store_rotation>(task, d.num_rows, d.num_threads);
}

void add_normed_rows(const Decoder& d, const float* weight) {
  const NormTask task = {&d, weight, nullptr, nullptr};
  run_job<NormTask, compute_norm, store_norm>(task, d.num_rows, d.num_threads);
}

void norm_outputs(const Decoder& d, const Step& step) {
  const int64_t hidden = d.model.hidden;
  for (int64_t i = 0; i < step.num_outputs; i++) {
    d.path.rows->norm(d.x + step.output_rows[i] * hidden, d.model.norm, float(d.model.eps), hidden, step.hidden + i * hidden);
  }
}

}  // namespace lorikeet
