// Quantizes weights in float32 to matrices of 8-bit and 4-bit integers.
#include <math.h>
#include <string.h>

#include "dtype.h"
#include "fill.h"

namespace lorikeet {
namespace {

constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: added and taken away, it rounds to the nearest, ties to even
constexpr int kScales = 8;                // that are tried for each group of 8-bit integers
constexpr int kEnds = 4;                  // that are tried on each side of the range of a group of 4-bit integers
constexpr float kEndStep = 1.0f / 48.0f;  // of the range, between them

float rounded(float w, float scale) {
  const float value = (w / scale + kRounding) - kRounding;
  return value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value;
}

// Return the sum of squared errors of a group's weights with this scale.
double loss(const float* w, float scale) {
  double sums[4] = {};
  for (int i = 0; i < kGroup; i += 4) {
    for (int j = 0; j < 4; j++) {
      const float error = rounded(w[i + j], scale) * scale - w[i + j];
      sums[j] += double(error) * error;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Return the scale with the least error among the numbers in bfloat16 near the largest weight / 127; 0 for a group of
// zeros.
uint16_t best_scale(const float* w, float bound) {
  if (bound < 1e-30f) return 0;
  const float middle = bound / 127.0f;
  uint32_t bits;
  memcpy(&bits, &middle, 4);
  uint16_t best = uint16_t((bits + 0xffff) >> 16);
  double least = loss(w, from_bfloat16(best));
  for (int number = 1, half = best - 1; number < kScales; number++, half--) {
    const float scale = from_bfloat16(uint16_t(half)), cut = rounded(bound, scale) * scale - bound;
    if (double(cut) * cut >= least) continue;  // the largest weight alone loses that much, and a sum is no smaller
    const double lost = loss(w, scale);
    if (lost < least) least = lost, best = uint16_t(half);
  }
  return best;
}

// importance: of each input, or null where all are alike.
struct Source {
  const float* weight;
  int64_t num_inputs;
  const float* importance;
};

// Copy the weights of a group; beyond the last input, repeat the last weight. Returns false if one is not finite.
bool take_group(const Source& source, int64_t output, int64_t group, float* w) {
  const int64_t rest = source.num_inputs - group * kGroup, count = rest < kGroup ? rest : kGroup;
  memcpy(w, source.weight + output * source.num_inputs + group * kGroup, count * sizeof(float));
  for (int64_t i = count; i < kGroup; i++) w[i] = w[count - 1];
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(w[i])) return false;
  }
  return true;
}

bool fill_int8(const Source& source, const Part& part, int64_t output, int64_t group) {
  float w[kGroup], bound = 0;
  if (!take_group(source, output, group, w)) return false;
  const int64_t count = source.num_inputs - group * kGroup;
  for (int64_t i = count; i < kGroup; i++) w[i] = 0.0f;
  for (float each : w) bound = fabsf(each) > bound ? fabsf(each) : bound;
  const uint16_t half = best_scale(w, bound);
  scales_of(part)[place_of(part, output, group)] = half;
  if (!half) return true;
  int8_t q[kGroup];
  for (int i = 0; i < kGroup; i++) q[i] = int8_t(rounded(w[i], from_bfloat16(half)));
  put_bytes(part, output, group, q);
  return true;
}

float rounded4(float w, float minimum, float factor) {
  const float value = ((w - minimum) * factor + kRounding) - kRounding;
  return value > 15.0f ? 15.0f : value < 0.0f ? 0.0f : value;
}

// Copy the importance of the weights of a group, 0 beyond the last input.
void take_importance(const Source& source, int64_t group, float* importance) {
  for (int i = 0; i < kGroup; i++) {
    const int64_t input = group * kGroup + i;
    importance[i] = !source.importance ? 1.0f : input < source.num_inputs ? source.importance[input] : 0.0f;
  }
}

// Return the sum of a group's squared errors, each times its importance; halves of the group are added up until one
// number is left.
float loss4(const float* w, const float* importance, float scale, float minimum, float factor) {
  float sums[kGroup];
  for (int i = 0; i < kGroup; i++) {
    const float error = (rounded4(w[i], minimum, factor) * scale + minimum) - w[i];
    sums[i] = error * error * importance[i];
  }
  for (int half = kGroup / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Quantize a group with the range of the least error, among ranges that leave out nothing or little of the smallest and
// largest weights.
bool fill_int4(const Source& source, const Part& part, int64_t output, int64_t group) {
  float w[kGroup], importance[kGroup];
  if (!take_group(source, output, group, w)) return false;
  take_importance(source, group, importance);
  float low = w[0], high = w[0];
  for (float each : w) low = each < low ? each : low, high = each > high ? each : high;
  const float step = (high - low) * kEndStep;
  float least = INFINITY, factor = 0.0f;
  uint16_t scale = 0, minimum = to_half(low);
  for (int number = 0; number < kEnds * kEnds; number++) {
    const float first = low + step * float(number / kEnds), last = high - step * float(number % kEnds);
    const uint16_t a = to_half((last - first) / 15.0f), b = to_half(first);
    if (!is_finite_half(a) || !is_finite_half(b)) return false;
    const float inverse = a ? 1.0f / from_half(a) : 0.0f;
    const float lost = loss4(w, importance, from_half(a), from_half(b), inverse);
    if (lost < least) least = lost, scale = a, minimum = b, factor = inverse;
  }
  const int64_t place = place_of(part, output, group);
  scales_of(part)[place] = scale, minima_of(part)[place] = minimum;
  uint8_t q[kGroup];
  for (int i = 0; i < kGroup; i++) q[i] = uint8_t(rounded4(w[i], from_half(minimum), factor));
  put_nibbles(part, output, group, q);
  return true;
}

}  // namespace

Matrix* quantize_matrix(Kind kind, const float* weight, int64_t num_outputs, int64_t num_inputs, const float* importance,
                        int num_threads) {
  if (kind != kInt8 && kind != kInt4) return nullptr;
  const Source source = {weight, num_inputs, importance};
  return filled(new_matrix(kind, num_outputs, num_inputs), source, 1, kind == kInt8 ? fill_int8 : fill_int4, num_threads);
}

}  // namespace lorikeet
