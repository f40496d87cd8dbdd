// Threads that compute the units of one job together. Knows nothing of matrices.
//
// The calling thread works too. A unit is claimed by one thread, which computes it into a buffer of its own and then
// stores it from there. When nothing is left to claim, the caller waits for the units that helpers began only for about
// as long as a unit takes, and then computes them itself: a helper whose processor was taken away holds up nobody, and
// finds, once it runs again, that its unit is no longer its own.
//
// A job may have first units, whose results its other units need at their end: those compute what they can, wait until
// the first units are stored, or compute one that its thread is slow to store, and then amend what they have. So two jobs
// that would follow each other are one, and nobody waits between them.
//
// A helper that comes late may still read what a job's `compute` reads, long after `run` has returned. Such memory is
// therefore never freed, or freed after `wait_for_helpers`, or lent for the job. Memory that `store` touches may be freed at
// once.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lorikeet {

constexpr int64_t kBufferFloats = 65536;  // of one thread: the largest unit
constexpr int64_t kFirstFloats = 16384;   // of that, at its end: the largest first unit, in a job that has such
constexpr int64_t kMaxUnits = 1 << 15;    // of one job
constexpr int kMaxThreads = 64;
constexpr int64_t kTaskBytes = 192;
constexpr int64_t kMostLentBytes = 1 << 16;

struct Job {
  void (*compute)(const void* task, int64_t unit, float* buffer);
  void (*amend)(const void* task, int64_t unit, float* buffer);  // after `compute`, of all but first units
  void (*store)(const void* task, int64_t unit, const float* buffer);
  int64_t num_first;                          // units before all others, which `amend` needs; 0: `amend` is not called
  alignas(8) unsigned char task[kTaskBytes];  // passed to all: trivially copyable, copied by each thread
};
static_assert(std::is_trivially_copyable<Job>::value && sizeof(Job) % 8 == 0, "copied by words");

// Compute units 0 to num_units - 1, at most kMaxUnits, by at most num_threads threads with the caller's own.
void run(const Job& job, int64_t num_units, int num_threads);

// Wait until no helper reads the memory that finished jobs have read.
void wait_for_helpers();

// Return memory of this thread for what one job reads, at most kMostLentBytes. It is lent again only once no helper reads
// it. Null if there is no memory.
void* lend(int64_t bytes);

}  // namespace lorikeet
