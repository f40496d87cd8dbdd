#include "processor.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lorikeet {
namespace {

struct Features {
  bool avx2, avx_vnni, avx512_vnni;
};

#if defined(__x86_64__)
// The registers that the system saves: a processor's flag alone does not mean that they may be used.
uint32_t saved_registers() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Features detect() {
  uint32_t a, b, c, d, b7 = 0, c7 = 0, a71 = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return {};
  const bool saves = c >> 27 & 1, avx_fma = (c >> 28 & 1) && (c >> 12 & 1) && (c >> 29 & 1);  // with F16C
  if (!saves || !avx_fma || (saved_registers() & 0x6) != 0x6) return {};
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    b7 = b, c7 = c;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
  }
  const bool avx2 = b7 >> 5 & 1;
  const bool wide = (saved_registers() & 0xe6) == 0xe6;
  const bool avx512 = (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1);  // F, DQ, BW, VL
  return {avx2, avx2 && (a71 >> 4 & 1), avx2 && wide && avx512 && (c7 >> 11 & 1)};
}
#else
Features detect() { return {}; }
#endif

struct Paths {
  Path list[kMaxPaths];
  int count = 0;

  Paths() {
    list[count++] = {"plain", tiles_plain, quantize_row_plain, &row_kernels_plain};
#if defined(__x86_64__)
    const Features features = detect();
    if (features.avx2) list[count++] = {"avx2", tiles_avx2, quantize_row_avx2, &row_kernels_avx2};
    if (features.avx_vnni) {
      list[count++] = {"avx_vnni", tiles_avx_vnni, quantize_row_avx2, &row_kernels_avx2};
    }
    if (features.avx512_vnni) {
      list[count++] = {"avx512_vnni", tiles_avx512_vnni, quantize_row_avx2, &row_kernels_avx512};
    }
#endif
  }
};

const Paths found;
std::atomic<int> limit{0};

}  // namespace

int processor_paths(const Path** paths) {
  *paths = found.list;
  const int most = limit.load(std::memory_order_relaxed);
  return most > 0 && most < found.count ? most : found.count;
}

void limit_paths(int count) { limit.store(count, std::memory_order_relaxed); }

}  // namespace lorikeet
