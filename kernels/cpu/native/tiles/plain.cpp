// Products for any processor: the definition, which all other paths equal bit by bit.
#include "../dtype.h"
#include "quantize_row.h"
#include "tile.h"

namespace lorikeet {
namespace {

// The instructions of tile.h for all outputs of a block, computed one after the other.
struct Plain {
  static constexpr int64_t kLanes = kBlock;
  struct Words { int16_t at[kBlock][2]; };
  struct Integers { int32_t at[kBlock]; };
  struct Floats { float at[kBlock]; };

  template <typename F>
  static Floats each(F number) {
    Floats made;
    for (int o = 0; o < kBlock; o++) made.at[o] = number(o);
    return made;
  }

  static Words bytes(const uint8_t* p) {
    Words words;
    for (int i = 0; i < 2 * kBlock; i++) words.at[i / 2][i % 2] = int8_t(p[i]);
    return words;
  }
  static Words nibbles(const uint8_t* p, int n) {
    Words words;
    for (int i = 0; i < 2 * kBlock; i++) words.at[i / 2][i % 2] = p[i * 2 + n / 2] >> n % 2 * 4 & 15;
    return words;
  }
  static void add_products(Integers& sums, const Words& words, const int16_t* pair) {
    for (int o = 0; o < kBlock; o++) sums.at[o] += words.at[o][0] * pair[0] + words.at[o][1] * pair[1];
  }
  static Integers no_products() { return {}; }
  static Integers add(const Integers& a, const Integers& b) {
    Integers sums;
    for (int o = 0; o < kBlock; o++) sums.at[o] = a.at[o] + b.at[o];
    return sums;
  }
  static Floats floats(const Integers& a) { return each([&](int o) { return float(a.at[o]); }); }
  static Floats zeros() { return {}; }
  static Floats all(float x) { return each([=](int) { return x; }); }
  static Floats bfloat16(const uint16_t* p) { return each([=](int o) { return from_bfloat16(p[o]); }); }
  static Floats half(const uint16_t* p) { return each([=](int o) { return from_half(p[o]); }); }
  static Floats unsigned_bytes(const uint8_t* p) { return each([=](int o) { return float(p[o]); }); }
  static Floats signed_bytes(const uint8_t* p) { return each([=](int o) { return float(int8_t(p[o])); }); }
  static Floats multiply(const Floats& a, const Floats& b) { return each([&](int o) { return a.at[o] * b.at[o]; }); }
  static Floats add_product(const Floats& a, const Floats& b, const Floats& c) {
    return each([&](int o) { return __builtin_fmaf(a.at[o], b.at[o], c.at[o]); });
  }
  static void store(float* out, const Floats& a) { memcpy(out, a.at, sizeof a.at); }
};

template <template <class> class Format>
void tile(const Part& part, int64_t block, const Rows& rows, int64_t first_row, int64_t num_rows, float* out,
          int64_t stride) {
  for (int64_t r = 0; r < num_rows; r++) rows_of<Plain, Format, 1, 1>(part, block, rows, first_row + r, out + r * stride, stride, 0);
}

}  // namespace

const Tile tiles_plain[kKinds] = {tile<Int8Format>, tile<Int4Format>, tile<Q8Format>, tile<Q4KFormat>, tile<Q6KFormat>};

void quantize_row_plain(const float* x, int64_t num_inputs, int16_t* values, float* scales, float* sums) {
  quantize_row(x, num_inputs, values, scales, sums);
}

}  // namespace lorikeet
