// The row kernels for any processor.
#include "activation.h"
#include "attention.h"
#include "lora.h"
#include "norm.h"
#include "rotate.h"

namespace lorikeet {

const RowKernels row_kernels_plain = {norm, rotate, attend, shrink, expand, gate};

}  // namespace lorikeet
