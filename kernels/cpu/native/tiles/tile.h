// The product of one block, compiled for several processors by the files that include this one. Everything is local to
// such a file (see quantize_row.h).
//
// Instructions: what a processor does with kLanes outputs at once.
//     Words       two 16-bit integers for each output, of neighbouring inputs
//     Integers    a 32-bit integer for each output
//     Floats      a number in float32 for each output
//     bytes(p), nibbles(p, n)    Words of signed bytes, or of the n-th 4 bits of 16
//     add_products(sums, words, pair)    add to each integer the two products with a pair of inputs
//     bfloat16(p), half(p), unsigned_bytes(p), signed_bytes(p)    Floats of numbers in memory
#pragma once

#include "../product.h"

namespace lorikeet {
namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line

// Formats: each gives the weights of a pair of inputs, and the scale and minimum of a group. place: the index of a
// block's group; above: the index of a block's super; kLaneBytes: the bytes from one output's weights to the next
// one's.

template <class I>
struct Int8Format {
  static constexpr int kParts = 1;  // of a group, each with a scale of its own
  static constexpr bool kHasMinima = false, kIsK = false;
  static constexpr int64_t kGroupBytes = kGroup * kBlock, kLaneBytes = 2;
  static typename I::Words pair(const uint8_t* w, int p) { return I::bytes(w + p * 2 * kBlock); }
  static typename I::Floats scale(const Part& part, int64_t place, int64_t, int) { return I::bfloat16(part.scales + place); }
  static typename I::Floats minimum(const Part&, int64_t, int64_t) { return I::zeros(); }
};

template <class I>
struct Q8Format : Int8Format<I> {
  static typename I::Floats scale(const Part& part, int64_t place, int64_t, int) { return I::half(part.scales + place); }
};

template <class I>
struct Int4Format {
  static constexpr int kParts = 1;
  static constexpr bool kHasMinima = true, kIsK = false;
  static constexpr int64_t kGroupBytes = kGroup * kBlock / 2, kLaneBytes = 4;
  static typename I::Words pair(const uint8_t* w, int p) { return I::nibbles(w + p / 4 * 4 * kBlock, p % 4); }
  static typename I::Floats scale(const Part& part, int64_t place, int64_t, int) { return I::half(part.scales + place); }
  static typename I::Floats minimum(const Part& part, int64_t place, int64_t) { return I::half(part.minima + place); }
};

template <class I>
struct Q4KFormat : Int4Format<I> {
  static constexpr bool kIsK = true;
  static typename I::Floats scale(const Part& part, int64_t place, int64_t above, int) {
    return I::multiply(I::half(part.scales + above), I::unsigned_bytes(part.factors + place));
  }
  static typename I::Floats minimum(const Part& part, int64_t place, int64_t above) {
    return I::multiply(I::half(part.minima + above), I::unsigned_bytes(part.factors + place + kBlock));
  }
};

template <class I>
struct Q6KFormat : Int8Format<I> {
  static constexpr int kParts = 2;
  static constexpr bool kIsK = true;
  static typename I::Floats scale(const Part& part, int64_t place, int64_t above, int number) {
    return I::multiply(I::half(part.scales + above), I::signed_bytes(part.factors + place + number * kBlock));
  }
};

// Compute kLanes outputs of R rows. kChains: the sums of each row that are computed side by side, so that none waits
// for the one before. ahead: the bytes from each weight to one that is prefetched; 0: none is.
// Integers add up to the same in any order. All inner loops are unrolled, else a compiler keeps the sums in memory.
template <class I, template <class> class Format, int R, int kChains>
inline void lanes_of(const Part& part, int64_t block, int64_t lane, const Rows& rows, int64_t row, float* out,
                     int64_t stride, int64_t ahead) {
  using F = Format<I>;
  constexpr int kPairsOfPart = int(kPairs) / F::kParts;
  const int64_t groups = part.num_groups, supers = groups / kSuper;
  const uint8_t* w = part.weights + block * groups * F::kGroupBytes + lane * F::kLaneBytes;
  const int16_t* x = rows.values + row * groups * kGroup;
  const float *xscales = rows.scales + row * groups, *xsums = rows.sums + row * groups;
  typename I::Floats sums[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) sums[r] = I::zeros();
  for (int64_t g = 0; g < groups; g++, w += F::kGroupBytes, x += kGroup) {
    for (int64_t i = 0; ahead && i < F::kGroupBytes; i += kLine) __builtin_prefetch(w + ahead + i);
    const int64_t place = (block * groups + g) * kBlock * (F::kIsK ? 2 : 1) + lane;
    const int64_t above = F::kIsK ? (block * supers + g / kSuper) * kBlock + lane : 0;
#pragma GCC unroll 2
    for (int number = 0; number < F::kParts; number++) {
      typename I::Integers products[R][kChains];
#pragma GCC unroll 16
      for (int i = 0; i < R * kChains; i++) products[i / kChains][i % kChains] = I::no_products();
#pragma GCC unroll 16
      for (int i = 0; i < kPairsOfPart; i++) {
        const int p = number * kPairsOfPart + i;
        const typename I::Words weights = F::pair(w, p);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) I::add_products(products[r][i % kChains], weights, x + r * groups * kGroup + p * 2);
      }
      const typename I::Floats scale = F::scale(part, place, above, number);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
        for (int c = 1; c < kChains; c++) products[r][0] = I::add(products[r][0], products[r][c]);
        const typename I::Floats both = I::multiply(scale, I::all(xscales[r * groups + g]));
        sums[r] = I::add_product(I::floats(products[r][0]), both, sums[r]);
      }
    }
    if (F::kHasMinima) {
      const typename I::Floats minimum = F::minimum(part, place, above);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[r] = I::add_product(minimum, I::all(xsums[r * groups + g]), sums[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) I::store(out + r * stride + lane, sums[r]);
}

template <class I, template <class> class Format, int R, int kChains>
inline void rows_of(const Part& part, int64_t block, const Rows& rows, int64_t row, float* out, int64_t stride,
                    int64_t ahead) {
  for (int64_t lane = 0; lane < kBlock; lane += I::kLanes) {
    lanes_of<I, Format, R, kChains>(part, block, lane, rows, row, out, stride, lane ? 0 : ahead);
  }
}

// Compute all rows in as few passes over the weights as possible. The last pass prefetches the weights of the next
// block, which a processor does not do by itself while passes begin anew in this block. kMost: the most rows of a pass,
// whose sums fit into registers. kWide: the rows that keep a processor busy with one chain of sums each; half of them
// take two, fewer four.
template <class I, template <class> class Format, int kWide, int R>
inline void pass(const Part& part, int64_t block, const Rows& rows, int64_t row, int64_t num_rows, float* out,
                 int64_t stride, int64_t ahead) {
  if constexpr (R > 1) {
    if (num_rows < R) return pass<I, Format, kWide, R - 1>(part, block, rows, row, num_rows, out, stride, ahead);
  }
  rows_of<I, Format, R, R >= kWide ? 1 : 2 * R >= kWide ? 2 : 4>(part, block, rows, row, out, stride, ahead);
}

template <class I, template <class> class Format, int kMost, int kWide>
inline void passes(const Part& part, int64_t block, const Rows& rows, int64_t row, int64_t num_rows, float* out,
                   int64_t stride) {
  for (int64_t left = (num_rows + kMost - 1) / kMost; left; left--) {
    const int64_t count = (num_rows + left - 1) / left;
    const int64_t ahead = left == 1 ? part.num_groups * Format<I>::kGroupBytes : 0;
    pass<I, Format, kWide, kMost>(part, block, rows, row, count, out, stride, ahead);
    row += count, num_rows -= count, out += count * stride;
  }
}

}  // namespace
}  // namespace lorikeet
