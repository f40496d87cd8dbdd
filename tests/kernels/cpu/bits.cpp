// Computes by every path of the processor it runs on, and prints a hash of each result's bits. The same on every processor.
//
// `python -m tests.kernels.cpu.sanitized aarch64` builds it for this machine and for ARM, and compares what both print.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vector>

#include "interface.h"

using namespace lorikeet;

namespace {

uint64_t state = 1;

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(state >> 33);
}

// Numbers near a bell curve of width 1.
float random_number() {
  float sum = 0;
  for (int i = 0; i < 4; i++) sum += float(random_bits() % 65536) * (1.0f / 65536) - 0.5f;
  return sum * 1.7320508f;
}

std::vector<float> numbers(int64_t count, float factor = 1.0f) {
  std::vector<float> made(count);
  for (float& each : made) each = random_number() * factor;
  return made;
}

uint64_t hash(const void* memory, size_t num_bytes) {
  uint64_t found = 14695981039346656037u;
  for (size_t i = 0; i < num_bytes; i++) found = (found ^ static_cast<const uint8_t*>(memory)[i]) * 1099511628211u;
  return found;
}

// One line for a result that every path must have; a line for each that has another one.
struct Result {
  uint64_t first = 0;
  void add(const char* name, int32_t path, const std::vector<float>& out) {
    for (float each : out) {
      if (!isfinite(each)) printf("%s is not finite by %s\n", name, lorikeet_path_name(path));
    }
    const uint64_t found = hash(out.data(), out.size() * sizeof(float));
    if (path == 0) printf("%s %016llx\n", name, static_cast<unsigned long long>(first = found));
    else if (found != first) printf("%s differs by %s\n", name, lorikeet_path_name(path));
  }
};

void show_memory(const char* name, const Matrix* matrix) {
  int64_t fields[4];
  lorikeet_matrix_part(matrix, 0, fields);
  printf("%s %016llx\n", name,
         static_cast<unsigned long long>(hash(reinterpret_cast<const void*>(fields[3]), size_t(fields[2]))));
}

void multiply(const char* name, const Matrix* matrix) {
  show_memory(name, matrix);
  for (int64_t rows : {1, 2, 3, 5, 8, 13, 29, 65}) {
    char label[64];
    snprintf(label, sizeof label, "%s, %d rows", name, int(rows));
    const std::vector<float> x = numbers(rows * matrix->num_inputs), bias = numbers(matrix->num_outputs);
    Result result;
    for (int32_t path = 0; path < lorikeet_num_paths(); path++) {
      std::vector<float> out(rows * matrix->num_outputs, NAN);
      lorikeet_matrix_multiply(matrix, x.data(), out.data(), bias.data(), rows, matrix->num_inputs, matrix->num_outputs, 0,
                               0, path, path % 2 + 1);
      result.add(label, path, out);
    }
  }
}

// Matrices whose numbers' errors weigh the same, and such whose inputs have weights of their own.
void multiply_quantized() {
  for (int64_t inputs : {31, 96, 577}) {
    const std::vector<float> weight = numbers(75 * inputs, 0.1f);
    std::vector<float> weights = numbers(inputs);
    for (float& each : weights) each *= each;
    for (const float* importance : {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
      for (int32_t kind : {kInt8, kInt4}) {
        char label[64];
        snprintf(label, sizeof label, "%s of %d %sinputs", kind == kInt8 ? "int8" : "int4", int(inputs),
                 importance ? "weighed " : "");
        Matrix* matrix = lorikeet_matrix_quantize(kind, weight.data(), 75, inputs, importance, 2);
        multiply(label, matrix);
        lorikeet_matrix_free(matrix);
      }
    }
  }
}

void multiply_blocks() {
  struct Blocks {
    const char* name;
    int32_t format;
    int64_t bytes, halves[2];
  };
  const Blocks all[] = {{"Q4_0", kFileQ4_0, 18 * 8, {0, 0}},
                        {"Q4_1", kFileQ4_1, 20 * 8, {0, 2}},
                        {"Q8_0", kFileQ8_0, 34 * 8, {0, 0}},
                        {"Q4_K", kFileQ4_K, 144, {0, 2}},
                        {"Q6_K", kFileQ6_K, 210, {208, 208}}};
  for (const Blocks& blocks : all) {
    const int64_t size = blocks.format >= kFileQ4_K ? blocks.bytes : blocks.bytes / 8;
    std::vector<uint8_t> rows(37 * 2 * blocks.bytes);
    for (uint8_t& each : rows) each = uint8_t(random_bits());
    for (size_t at = 0; at < rows.size(); at += size) {
      for (int64_t half : blocks.halves) rows[at + half + 1] = uint8_t(0x18 | (random_bits() & 0x87));
    }
    Matrix* matrix = lorikeet_matrix_pack(blocks.format, rows.data(), 37, 512, 2);
    multiply(blocks.name, matrix);
    lorikeet_matrix_free(matrix);
  }
}

// Two layers with norms, a window, rotation and an adapter: a prompt in two pieces beside another one, then a token of each.
void decode(Dtype cache_dtype) {
  constexpr int64_t kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2, kDim = 16, kPositions = 64, kBlocks = 8;
  const std::vector<float> table = numbers(50 * kHidden), norm = numbers(kHidden), small = numbers(kDim);
  std::vector<float> cos(kPositions * kDim / 2), sin(kPositions * kDim / 2);
  for (size_t i = 0; i < cos.size(); i++) cos[i] = random_number(), sin[i] = random_number();
  Matrix* embed = lorikeet_matrix_quantize(kInt8, table.data(), 50, kHidden, nullptr, 1);
  const int64_t shapes[kGroups][2] = {{(kHeads + 2 * kKvHeads) * kDim, kHidden}, {kHidden, kHeads * kDim},
                                      {2 * kInner, kHidden}, {kHidden, kInner}};
  const int64_t outputs[kProjections] = {kHeads * kDim, kKvHeads * kDim, kKvHeads * kDim, kHidden, kInner, kInner, kHidden};
  const int64_t inputs[kProjections] = {kHidden, kHidden, kHidden, kHeads * kDim, kHidden, kHidden, kInner};
  std::vector<Matrix*> matrices;
  Layer layers[2] = {};
  Factors factors[2 * kProjections];
  std::vector<std::vector<float>> kept;
  for (int l = 0; l < 2; l++) {
    for (int64_t g = 0; g < kGroups; g++) {
      const std::vector<float> weight = numbers(shapes[g][0] * shapes[g][1], 0.1f);
      matrices.push_back(lorikeet_matrix_quantize(l ? kInt4 : kInt8, weight.data(), shapes[g][0], shapes[g][1], nullptr, 1));
      layers[l].products[g] = matrices.back();
    }
    layers[l].input_norm = layers[l].post_norm = norm.data();
    if (l) layers[l].q_norm = layers[l].k_norm = small.data();
    layers[l].cos = cos.data(), layers[l].sin = sin.data(), layers[l].window = l ? 9 : 0;
    for (int64_t p = 0; p < kProjections; p++) {
      kept.push_back(numbers(3 * inputs[p], 0.2f));
      kept.push_back(numbers(3 * outputs[p], 0.2f));
      factors[l * kProjections + p] = {kept[kept.size() - 2].data(), kept.back().data(), 3, 0.5, kFloat32};
    }
  }
  const Model model = {2, 1, kHidden, kInner, kHeads, kKvHeads, kDim, kPositions, embed, norm.data(), cache_dtype, 0, 0, nullptr, 1e-5, 1, 1, 1, 0};
  Result results[3];
  for (int32_t path = 0; path < lorikeet_num_paths(); path++) {
    const size_t size = size_t(kBlocks * lorikeet_cache_block_size(kKvHeads, kDim)) * (cache_dtype == kFloat32 ? 4 : 2);
    std::vector<std::vector<char>> caches(2, std::vector<char>(size));
    for (int l = 0; l < 2; l++) layers[l].cache = caches[l].data();
    Decoder* decoder = lorikeet_decoder_new(&model, layers, path);
    const int32_t blocks[] = {3, 1, 6, 2, 4};
    int64_t next = 0;
    const auto step = [&](const char* name, int number, std::vector<Chunk> chunks) {
      std::vector<int64_t> tokens, rows;
      for (const Chunk& chunk : chunks) {
        for (int64_t i = 0; i < chunk.num_rows; i++) rows.push_back(int64_t(tokens.size())), tokens.push_back(next++ * 7 % 50);
      }
      std::vector<float> hidden(rows.size() * kHidden, NAN);
      const Step one = {tokens.data(), chunks.data(), blocks, rows.data(), hidden.data(), int64_t(tokens.size()),
                        int64_t(chunks.size()), 5, int64_t(rows.size())};
      lorikeet_decoder_begin(decoder, &one);
      lorikeet_decoder_go_on(decoder, &one, path % 2 + 1, nullptr, INFINITY);
      results[number].add(name, path, hidden);
    };
    step("first piece", 0, {{0, 20, 0, 0, 0, 2, factors}});
    step("second piece beside another", 1, {{0, 13, 20, 20, 0, 3, factors}, {13, 17, 0, 0, 3, 2, nullptr}});
    step("a token of each", 2, {{0, 1, 33, 33, 0, 3, factors}, {1, 1, 17, 17, 3, 2, nullptr}});
    lorikeet_decoder_free(decoder);
  }
  for (Matrix* matrix : matrices) lorikeet_matrix_free(matrix);
  lorikeet_matrix_free(embed);
}

}  // namespace

int main() {
  fprintf(stderr, "paths:");
  for (int32_t path = 0; path < lorikeet_num_paths(); path++) fprintf(stderr, " %s", lorikeet_path_name(path));
  fprintf(stderr, "\n");
  multiply_quantized();
  multiply_blocks();
  decode(kFloat32);
  decode(kBfloat16);
  fflush(stdout);
  _exit(0);  // helpers may still sleep
}
