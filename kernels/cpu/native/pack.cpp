// Converts the blocks of a file to matrices that stand for the same numbers: https://github.com/ggml-org/ggml,
// docs/gguf.md and src/ggml-quants.c.
#include <string.h>

#include "dtype.h"
#include "fill.h"

namespace lorikeet {
namespace {

struct Source {
  const uint8_t* rows;
  int64_t row_bytes, block_bytes;
};

const uint8_t* block_of(const Source& source, int64_t output, int64_t number) {
  return source.rows + output * source.row_bytes + number * source.block_bytes;
}

uint16_t half_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

void split_nibbles(const uint8_t* p, int64_t count, uint8_t* q) {
  for (int64_t i = 0; i < count; i++) q[i] = p[i] & 15, q[count + i] = p[i] >> 4;
}

// A block has 32 numbers: a scale in half, 16 bytes of nibbles. A number is scale * (nibble - 8).
bool fill_q4_0(const Source& source, const Part& part, int64_t output, int64_t group) {
  const uint8_t* block = block_of(source, output, group);
  const uint16_t scale = half_at(block), minimum = to_half(-8.0f * from_half(scale));
  uint8_t q[kGroup];
  split_nibbles(block + 2, kGroup / 2, q);
  const int64_t place = place_of(part, output, group);
  scales_of(part)[place] = scale, minima_of(part)[place] = minimum;
  put_nibbles(part, output, group, q);
  return is_finite_half(scale) && is_finite_half(minimum);
}

// A block has 32 numbers: a scale and a minimum in half, 16 bytes of nibbles. A number is scale * nibble + minimum.
bool fill_q4_1(const Source& source, const Part& part, int64_t output, int64_t group) {
  const uint8_t* block = block_of(source, output, group);
  const uint16_t scale = half_at(block), minimum = half_at(block + 2);
  uint8_t q[kGroup];
  split_nibbles(block + 4, kGroup / 2, q);
  const int64_t place = place_of(part, output, group);
  scales_of(part)[place] = scale, minima_of(part)[place] = minimum;
  put_nibbles(part, output, group, q);
  return is_finite_half(scale) && is_finite_half(minimum);
}

// A block has 32 numbers: a scale in half, 32 signed bytes. A number is scale * byte.
bool fill_q8_0(const Source& source, const Part& part, int64_t output, int64_t group) {
  const uint8_t* block = block_of(source, output, group);
  scales_of(part)[place_of(part, output, group)] = half_at(block);
  int8_t q[kGroup];
  memcpy(q, block + 2, kGroup);
  put_bytes(part, output, group, q);
  return is_finite_half(half_at(block));
}

// A block has 256 numbers: a scale and a minimum in half, 8 scales and 8 minima of 6 bits in 12 bytes, and 32 bytes for
// each 64 numbers of 4 bits.
bool fill_q4_k(const Source& source, const Part& part, int64_t output, int64_t number) {
  const uint8_t* block = block_of(source, output, number);
  const uint8_t *six = block + 4, *nibbles = block + 16;
  const uint16_t scale = half_at(block), minimum = half_at(block + 2);
  const int64_t above = place_above(part, output, number * kSuper);
  scales_of(part)[above] = scale, minima_of(part)[above] = minimum ^ 0x8000;
  for (int j = 0; j < kSuper; j++) {
    uint8_t* factors = factors_of(part) + factors_place(part, output, number * kSuper + j);
    factors[0] = j < 4 ? six[j] & 63 : (six[j + 4] & 15) | six[j - 4] >> 6 << 4;
    factors[kBlock] = j < 4 ? six[j + 4] & 63 : six[j + 4] >> 4 | six[j] >> 6 << 4;
  }
  for (int j = 0; j < kSuper; j += 2, nibbles += kGroup) {
    uint8_t q[2 * kGroup];
    split_nibbles(nibbles, kGroup, q);
    put_nibbles(part, output, number * kSuper + j, q);
    put_nibbles(part, output, number * kSuper + j + 1, q + kGroup);
  }
  return is_finite_half(scale) && is_finite_half(minimum);
}

// A block has 256 numbers of 6 bits, each less 32: 128 bytes with the lower 4 bits, 64 with the upper 2, 16 signed
// scales, a scale in half.
bool fill_q6_k(const Source& source, const Part& part, int64_t output, int64_t number) {
  const uint8_t* block = block_of(source, output, number);
  const uint8_t *lower = block, *upper = block + 128, *scales = block + 192;
  const uint16_t scale = half_at(block + 208);
  scales_of(part)[place_above(part, output, number * kSuper)] = scale;
  for (int j = 0; j < kSuper; j++) {
    const uint8_t *four = lower + j / 4 * 64 + j % 2 * 32, *two = upper + j / 4 * 32;
    int8_t q[kGroup];
    for (int i = 0; i < kGroup; i++) {
      const int low = j % 4 < 2 ? four[i] & 15 : four[i] >> 4, high = two[i] >> j % 4 * 2 & 3;
      q[i] = int8_t((low | high << 4) - 32);
    }
    put_bytes(part, output, number * kSuper + j, q);
    uint8_t* factors = factors_of(part) + factors_place(part, output, number * kSuper + j);
    factors[0] = scales[2 * j], factors[kBlock] = scales[2 * j + 1];
  }
  return is_finite_half(scale);
}

}  // namespace

Matrix* pack_matrix(FileFormat format, const uint8_t* rows, int64_t num_outputs, int64_t num_inputs, int num_threads) {
  struct Known {
    FileFormat format;
    Kind kind;
    int64_t block_bytes, groups;
    bool (*fill)(const Source&, const Part&, int64_t, int64_t);
  };
  const Known all[] = {{kFileQ4_0, kInt4, 18, 1, fill_q4_0},
                       {kFileQ4_1, kInt4, 20, 1, fill_q4_1},
                       {kFileQ8_0, kQ8, 34, 1, fill_q8_0},
                       {kFileQ4_K, kQ4K, 144, kSuper, fill_q4_k},
                       {kFileQ6_K, kQ6K, 210, kSuper, fill_q6_k}};
  for (const Known& known : all) {
    if (known.format != format) continue;
    const int64_t block = known.groups * kGroup;
    if (num_inputs % block != 0) return nullptr;
    const Source source = {rows, num_inputs / block * known.block_bytes, known.block_bytes};
    return filled(new_matrix(known.kind, num_outputs, num_inputs), source, known.groups, known.fill, num_threads);
  }
  return nullptr;
}

}  // namespace lorikeet
