// The calls of interface.h, each a line or two over the functions that do the work.
#include "interface.h"

#include <string.h>

#include "linear.h"
#include "memory.h"
#include "pool.h"

using namespace lorikeet;

#ifdef LORIKEET_FAILS_ALLOCATIONS
int64_t lorikeet::allocations_left = -1;

EXPORT void lorikeet_fail_allocation(int64_t number) { allocations_left = number; }
#endif

EXPORT const char* lorikeet_digest() { return LORIKEET_DIGEST; }

EXPORT int32_t lorikeet_num_paths() {
  const Path* paths;
  return processor_paths(&paths);
}

EXPORT void lorikeet_limit_paths(int32_t count) { limit_paths(count); }

EXPORT const char* lorikeet_path_name(int32_t index) {
  const Path* paths;
  return index >= 0 && index < processor_paths(&paths) ? paths[index].name : nullptr;
}

EXPORT Matrix* lorikeet_matrix_new(int32_t kind, int64_t num_outputs, int64_t num_inputs) {
  return new_matrix(Kind(kind), num_outputs, num_inputs);
}

EXPORT Matrix* lorikeet_matrix_quantize(int32_t kind, const float* weight, int64_t num_outputs, int64_t num_inputs,
                                        const float* importance, int32_t num_threads) {
  return quantize_matrix(Kind(kind), weight, num_outputs, num_inputs, importance, num_threads);
}

EXPORT Matrix* lorikeet_matrix_pack(int32_t format, const uint8_t* rows, int64_t num_outputs, int64_t num_inputs,
                                    int32_t num_threads) {
  return pack_matrix(FileFormat(format), rows, num_outputs, num_inputs, num_threads);
}

EXPORT int32_t lorikeet_matrix_join(Matrix* first, Matrix* second) { return join_matrices(first, second) ? 0 : 1; }

EXPORT int32_t lorikeet_matrix_part(const Matrix* matrix, int64_t number, int64_t* fields) {
  if (number < 0 || number >= matrix->num_parts) return 1;
  const Part& part = matrix->parts[number];
  fields[0] = part.kind, fields[1] = part.num_outputs, fields[2] = part.num_bytes;
  fields[3] = int64_t(reinterpret_cast<uintptr_t>(part.weights));
  return 0;
}

EXPORT void lorikeet_matrix_dequantize(const Matrix* matrix, float* out) { dequantize_matrix(*matrix, out); }

EXPORT void lorikeet_matrix_rows(const Matrix* matrix, const int64_t* outputs, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i++) dequantize_row(*matrix, outputs[i], out + i * matrix->num_inputs);
}

EXPORT void lorikeet_matrix_free(Matrix* matrix) { free_matrix(matrix); }

static const Path& path_of(int32_t index) {
  const Path* paths;
  const int count = processor_paths(&paths);
  return paths[index < 0 || index >= count ? count - 1 : index];
}

EXPORT int32_t lorikeet_matrix_multiply(const Matrix* matrix, const void* x, void* y, const float* bias,
                                      int64_t num_rows, int64_t x_stride, int64_t y_stride, int32_t dtype, int32_t add,
                                      int32_t path, int32_t num_threads) {
  const Product product = {&matrix, &num_rows, 1, x, y, bias, num_rows, x_stride, y_stride, Dtype(dtype), add != 0};
  return multiply(product, path_of(path), num_threads < 1 ? 1 : num_threads) ? 0 : 1;
}

EXPORT int32_t lorikeet_experts_multiply(const Matrix* const* matrices, const int64_t* counts, int64_t num_experts,
                                         const void* x, void* y, const float* bias, int64_t num_rows, int64_t x_stride,
                                         int64_t y_stride, int32_t dtype, int32_t path, int32_t num_threads) {
  const Product product = {matrices, counts,   num_experts,  x,    y, bias, num_rows,
                           x_stride, y_stride, Dtype(dtype), false};
  return multiply(product, path_of(path), num_threads < 1 ? 1 : num_threads) ? 0 : 1;
}

EXPORT int32_t lorikeet_experts_adapt(const AdaptedExperts* experts, int32_t path, int32_t num_threads) {
  return adapt_experts(*experts, path_of(path), num_threads < 1 ? 1 : num_threads) ? 0 : 1;
}

EXPORT void lorikeet_wait_for_helpers() { wait_for_helpers(); }

EXPORT Decoder* lorikeet_decoder_new(const Model* model, const Layer* layers, int32_t path) {
  return new_decoder(*model, layers, path_of(path));
}

EXPORT void lorikeet_decoder_free(Decoder* decoder) { free_decoder(decoder); }

EXPORT int32_t lorikeet_decoder_begin(Decoder* decoder, const Step* step) { return begin(*decoder, *step) ? 0 : 1; }

EXPORT int32_t lorikeet_decoder_go_on(Decoder* decoder, const Step* step, int32_t num_threads, const int32_t* pause,
                                      double seconds) {
  return go_on(*decoder, *step, num_threads < 1 ? 1 : num_threads, pause, seconds) ? 1 : 0;
}

EXPORT int64_t lorikeet_cache_block_size(int64_t num_heads, int64_t head_dim) {
  return block_size({num_heads, head_dim, kFloat32});
}

static const RowKernels& rows_of_path(int32_t path) { return *path_of(path).rows; }

EXPORT void lorikeet_norm(int32_t path, const float* x, const float* weight, float eps, int64_t width, float* out) {
  rows_of_path(path).norm(x, weight, eps, width, out);
}

EXPORT void lorikeet_rotate(int32_t path, float* x, const float* cos, const float* sin, int64_t head_dim) {
  rows_of_path(path).rotate(x, cos, sin, head_dim);
}

EXPORT void lorikeet_attend(int32_t path, const AttentionTile* tile, float* out) { rows_of_path(path).attend(*tile, out); }

EXPORT void lorikeet_shrink(int32_t path, const void* a, int32_t dtype, const float* x, int64_t x_stride, int64_t num_rows,
                            int64_t width, int64_t num_ranks, float scaling, float* out, int64_t out_stride) {
  rows_of_path(path).shrink(a, Dtype(dtype), x, x_stride, num_rows, width, num_ranks, scaling, out, out_stride);
}

EXPORT void lorikeet_expand(int32_t path, const void* b, int32_t dtype, int64_t b_stride, int64_t count, int64_t num_ranks,
                            const float* h, float* out) {
  rows_of_path(path).expand(b, Dtype(dtype), b_stride, count, num_ranks, h, out);
}

EXPORT void lorikeet_gate(int32_t path, const float* gate_up, int64_t width, int32_t activation, float factor, float* out) {
  rows_of_path(path).gate(gate_up, width, Activation(activation), factor, out);
}
