// The row kernels by AVX512: F, BW, DQ and VL.
#if defined(__x86_64__)
#include "activation.h"
#include "attention.h"
#include "lora.h"
#include "norm.h"
#include "rotate.h"

namespace lorikeet {

const RowKernels row_kernels_avx512 = {norm, rotate, attend, shrink, expand, gate};

}  // namespace lorikeet
#endif
