// Threads that compute the units of one job together. Knows nothing of matrices.
//
// The calling thread works too. A unit is claimed by one thread, which computes it into a buffer of its own and then
// stores it from there. When nothing is left to claim, the caller waits for the units that helpers began only for about
// as long as a unit takes, and then computes them itself: a helper whose processor was taken away holds up nobody, and
// finds, once it runs again, that its unit is no longer its own.
//
// A helper that comes late may still read what a job's `compute` reads, long after `run` has returned. Such memory is
// therefore never freed, or freed after `wait_for_helpers`. Memory that `store` touches may be freed at once.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lorikeet {

constexpr int64_t kBufferFloats = 65536;  // of one thread: the largest unit
constexpr int64_t kMaxUnits = 1 << 15;    // of one job
constexpr int kMaxThreads = 64;
constexpr int64_t kTaskBytes = 192;

struct Job {
  void (*compute)(const void* task, int64_t unit, float* buffer);
  void (*store)(const void* task, int64_t unit, const float* buffer);
  alignas(8) unsigned char task[kTaskBytes];  // passed to both: trivially copyable, copied by each thread
};
static_assert(std::is_trivially_copyable<Job>::value && sizeof(Job) % 8 == 0, "copied by words");

// Compute units 0 to num_units - 1, at most kMaxUnits, by at most num_threads threads with the caller's own.
void run(const Job& job, int64_t num_units, int num_threads);

// Return once no helper reads what jobs that are over read.
void wait_for_helpers();

}  // namespace lorikeet
