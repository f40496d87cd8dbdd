// What `kernels.cpu.library` calls: plain C, so that neither Python's version nor PyTorch's matters.
#include <string.h>

#include "linear.h"
#include "matrix.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace lorikeet;

// Of the sources that this was built from.
EXPORT const char* lorikeet_digest() { return LORIKEET_DIGEST; }

EXPORT int32_t lorikeet_num_paths() {
  const Path* paths;
  return processor_paths(&paths);
}

EXPORT const char* lorikeet_path_name(int32_t index) {
  const Path* paths;
  return index >= 0 && index < processor_paths(&paths) ? paths[index].name : nullptr;
}

EXPORT Int8Matrix* lorikeet_int8_quantize(const float* weight, int64_t num_outputs, int64_t num_inputs,
                                          int32_t num_threads) {
  return quantize_matrix(weight, num_outputs, num_inputs, num_threads);
}

EXPORT void lorikeet_int8_dequantize(const Int8Matrix* matrix, float* out) { dequantize_matrix(*matrix, out); }

EXPORT void lorikeet_int8_free(Int8Matrix* matrix) { free_matrix(matrix); }

// path: an index, or -1 for the fastest. Returns 0, or 1 if there is no memory.
EXPORT int32_t lorikeet_int8_multiply(const Int8Matrix* matrix, const void* x, void* y, const float* bias,
                                      int64_t num_rows, int64_t x_stride, int64_t y_stride, int32_t dtype, int32_t add,
                                      int32_t path, int32_t num_threads) {
  const Path* paths;
  const int count = processor_paths(&paths);
  const Path& chosen = paths[path < 0 || path >= count ? count - 1 : path];
  const Product product = {matrix,   x,        y,        bias,         num_rows,
                           x_stride, y_stride, Dtype(dtype), add != 0};
  return multiply(product, chosen, num_threads < 1 ? 1 : num_threads) ? 0 : 1;
}
