// The library's calls, as `kernels.cpu.library` declares them to Python: plain C, so that neither Python's version nor
// PyTorch's matters. A program that calls them includes this file, and the compiler tells when they have changed.
//
// kind, format: see product.h and matrix.h. path: an index, or -1 for the fastest. Calls that return an int32_t return 0,
// or 1 where they could not do their work; those that return a pointer return null.
#pragma once

#include "experts/adapt.h"
#include "matrix.h"
#include "step/decoder.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifdef LORIKEET_FAILS_ALLOCATIONS
// Make an allocation fail, after `number` more that succeed; below 0 none fails.
EXPORT void lorikeet_fail_allocation(int64_t number);
#endif

// Return the digest of the sources that the library was built from.
EXPORT const char* lorikeet_digest();
EXPORT int32_t lorikeet_num_paths();
EXPORT void lorikeet_limit_paths(int32_t count);
EXPORT const char* lorikeet_path_name(int32_t index);

EXPORT lorikeet::Matrix* lorikeet_matrix_new(int32_t kind, int64_t num_outputs, int64_t num_inputs);
EXPORT lorikeet::Matrix* lorikeet_matrix_quantize(int32_t kind, const float* weight, int64_t num_outputs, int64_t num_inputs,
                                                  const float* importance, int32_t num_threads);
EXPORT lorikeet::Matrix* lorikeet_matrix_pack(int32_t format, const uint8_t* rows, int64_t num_outputs, int64_t num_inputs,
                                              int32_t num_threads);
// Move the outputs of second, which is freed, behind those of first. Returns 1 where the matrices do not fit together.
EXPORT int32_t lorikeet_matrix_join(lorikeet::Matrix* first, lorikeet::Matrix* second);
// Write a part's kind, outputs, number of bytes and address to fields. Returns 1 where there is no such part.
EXPORT int32_t lorikeet_matrix_part(const lorikeet::Matrix* matrix, int64_t number, int64_t* fields);
EXPORT void lorikeet_matrix_dequantize(const lorikeet::Matrix* matrix, float* out);
EXPORT void lorikeet_matrix_rows(const lorikeet::Matrix* matrix, const int64_t* outputs, int64_t count, float* out);
EXPORT void lorikeet_matrix_free(lorikeet::Matrix* matrix);
// Multiply rows by a matrix. Returns 1 if there is no memory, as all products do.
EXPORT int32_t lorikeet_matrix_multiply(const lorikeet::Matrix* matrix, const void* x, void* y, const float* bias,
                                        int64_t num_rows, int64_t x_stride, int64_t y_stride, int32_t dtype, int32_t add,
                                        int32_t path, int32_t num_threads);
// Multiply rows by a matrix for each expert: counts [num_experts] rows, num_rows in all; bias
// [num_experts][num_outputs].
EXPORT int32_t lorikeet_experts_multiply(const lorikeet::Matrix* const* matrices, const int64_t* counts, int64_t num_experts,
                                         const void* x, void* y, const float* bias, int64_t num_rows, int64_t x_stride,
                                         int64_t y_stride, int32_t dtype, int32_t path, int32_t num_threads);
EXPORT int32_t lorikeet_experts_adapt(const lorikeet::AdaptedExperts* experts, int32_t path, int32_t num_threads);

// Wait until nothing reads the memory that finished calls have read: then adapters may be freed.
EXPORT void lorikeet_wait_for_helpers();

// Make a decoder. Returns null if there is no memory, or the kernels do not compute this model.
EXPORT lorikeet::Decoder* lorikeet_decoder_new(const lorikeet::Model* model, const lorikeet::Layer* layers, int32_t path);
EXPORT void lorikeet_decoder_free(lorikeet::Decoder* decoder);
// Begin a step. Returns 1 if there is no memory.
EXPORT int32_t lorikeet_decoder_begin(lorikeet::Decoder* decoder, const lorikeet::Step* step);
// Go on with the step that was begun. Returns 1 once it is done, 0 where it pauses.
EXPORT int32_t lorikeet_decoder_go_on(lorikeet::Decoder* decoder, const lorikeet::Step* step, int32_t num_threads,
                                      const int32_t* pause, double seconds);
// Return how many numbers one block of a layer's cache has.
EXPORT int64_t lorikeet_cache_block_size(int64_t num_heads, int64_t head_dim);

// The kernels of rows, each computed by the calling thread: for tests, which compare all paths with their references.
EXPORT void lorikeet_norm(int32_t path, const float* x, const float* weight, float eps, int64_t width, float* out);
EXPORT void lorikeet_rotate(int32_t path, float* x, const float* cos, const float* sin, int64_t head_dim);
EXPORT void lorikeet_attend(int32_t path, const lorikeet::AttentionTile* tile, float* out);
EXPORT void lorikeet_shrink(int32_t path, const void* a, int32_t dtype, const float* x, int64_t x_stride, int64_t num_rows,
                            int64_t width, int64_t num_ranks, float scaling, float* out, int64_t out_stride);
EXPORT void lorikeet_expand(int32_t path, const void* b, int32_t dtype, int64_t b_stride, int64_t count, int64_t num_ranks,
                            const float* h, float* out);
EXPORT void lorikeet_gate(int32_t path, const float* gate_up, int64_t width, int32_t activation, float factor, float* out);
