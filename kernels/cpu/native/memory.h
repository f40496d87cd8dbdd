// Allocates memory for matrices, rows and threads.
//
// If built with LORIKEET_FAILS_ALLOCATIONS, as tests alone do, the allocation that they choose fails.
#pragma once

#include <stdlib.h>

#include <cstdint>

namespace lorikeet {

#ifdef LORIKEET_FAILS_ALLOCATIONS
// The number of allocations before the one that fails; below 0 none fails.
extern int64_t allocations_left;
inline bool fails() { return allocations_left >= 0 && allocations_left-- == 0; }
#else
inline bool fails() { return false; }
#endif

// Return bytes, a multiple of alignment, that the caller frees with `free`; null if there is no memory.
inline void* take_memory(size_t alignment, size_t bytes) { return fails() ? nullptr : aligned_alloc(alignment, bytes); }

}  // namespace lorikeet
