// Memory for matrices, rows and threads.
//
// Built with LORIKEET_FAILS_ALLOCATIONS, which tests alone set, the allocation that they name fails.
#pragma once

#include <stdlib.h>

#include <cstdint>

namespace lorikeet {

#ifdef LORIKEET_FAILS_ALLOCATIONS
// Allocations until the one that fails; below 0 none does.
extern int64_t allocations_left;
inline bool fails() { return allocations_left >= 0 && allocations_left-- == 0; }
#else
inline bool fails() { return false; }
#endif

// Return bytes, a multiple of alignment, that the caller frees with `free`; null if there is no memory.
inline void* take_memory(size_t alignment, size_t bytes) { return fails() ? nullptr : aligned_alloc(alignment, bytes); }

}  // namespace lorikeet
