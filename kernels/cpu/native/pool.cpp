#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "memory.h"

namespace lorikeet {
namespace {

constexpr int kWords = sizeof(Job) / 8;
constexpr int kUnitBits = 24;
constexpr uint64_t kUnitMask = (1u << kUnitBits) - 1;
constexpr int kSpins = 2000;               // before a helper sleeps: some 50 microseconds
// The time that a thread waits before it takes a unit away from another. A helper whose unit was taken away may read
// what later jobs write. That is harmless, but a thread sanitizer cannot know it, so its build waits for longer than
// jobs take.
#ifndef LORIKEET_PATIENCE_NS
#define LORIKEET_PATIENCE_NS 3000
#endif
constexpr int64_t kLeastPatienceNs = LORIKEET_PATIENCE_NS;
constexpr int64_t kBetweenMovesNs = 500000;

// The present job's generation, and the next unit to claim. Helpers read the words between a load of `claim` and an
// exchange that succeeds only if nothing was claimed or published meanwhile.
std::atomic<uint64_t> claim{kUnitMask};
std::atomic<uint64_t> words[kWords];
std::atomic<int64_t> job_units{0};
std::atomic<int> job_helpers{0};
std::atomic<int> caller_processor{-1};  // on which the present job was published

// The state of each unit's last job, as generation << 2 | state. A unit that a helper computes has an older generation.
enum : uint64_t { kDone = 1, kStoring = 2 };
std::atomic<uint64_t> states[kMaxUnits];

std::atomic<uint32_t> epoch{0};  // what helpers sleep on: one more for each job
std::atomic<int> sleeping{0};
std::atomic_flag in_use = ATOMIC_FLAG_INIT;
int num_helpers = 0;  // of those started; the caller that holds in_use owns it

struct alignas(64) Helper {
  std::atomic<bool> computing{false};
  alignas(64) float buffer[kBufferFloats];
};
std::atomic<Helper*> helpers[kMaxThreads];

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

void futex(int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch), operation, value, nullptr, nullptr, 0);
}

// Take a unit for this thread, unless it was finished or taken away.
bool take(int64_t unit, uint64_t generation, uint64_t state) {
  uint64_t before = states[unit].load(std::memory_order_acquire);
  return before >> 2 < generation &&
         states[unit].compare_exchange_strong(before, generation << 2 | state, std::memory_order_acq_rel);
}

float* part_of(const Job& job, int64_t unit, float* buffer) {
  return unit < job.num_first ? buffer + kBufferFloats - kFirstFloats : buffer;
}

void store_unit(const Job& job, int64_t unit, uint64_t generation, float* buffer) {
  job.store(job.task, unit, part_of(job, unit, buffer));
  states[unit].store(generation << 2 | kDone, std::memory_order_release);
}

// The generation of the last job whose first units this thread has seen stored.
thread_local uint64_t first_seen = 0;

void see_first(const Job& job, uint64_t generation, int64_t patience_ns, float* buffer);

void compute_unit(const Job& job, int64_t unit, uint64_t generation, float* buffer) {
  if (unit < job.num_first || !job.num_first) return job.compute(job.task, unit, part_of(job, unit, buffer));
  const int64_t started_ns = now_ns();
  job.compute(job.task, unit, buffer);
  if (first_seen != generation) see_first(job, generation, now_ns() - started_ns, buffer);
  job.amend(job.task, unit, buffer);
}

// Wait for a unit that another thread began, and compute it here once the deadline is over. Returns at once if the job
// is over.
void finish(const Job& job, int64_t unit, uint64_t generation, int64_t deadline_ns, float* buffer) {
  for (int spins = 1;; spins++) {
    const uint64_t state = states[unit].load(std::memory_order_acquire);
    if (state >> 2 > generation || state == (generation << 2 | kDone)) return;
    if (state >> 2 < generation && now_ns() >= deadline_ns && take(unit, generation, kStoring)) {
      compute_unit(job, unit, generation, buffer);
      return store_unit(job, unit, generation, buffer);
    }
    if (spins % 256) pause();
    else sched_yield();  // another thread lost its processor while it stored
  }
}

void see_first(const Job& job, uint64_t generation, int64_t patience_ns, float* buffer) {
  const int64_t deadline_ns = now_ns() + (patience_ns > kLeastPatienceNs ? patience_ns : kLeastPatienceNs);
  for (int64_t unit = 0; unit < job.num_first; unit++) finish(job, unit, generation, deadline_ns, buffer);
  first_seen = generation;
}

// Compute one unit of the open job. Returns false if there is none for this helper.
bool help(int index, Helper& self) {
  uint64_t seen = claim.load(std::memory_order_seq_cst);
  Job job;
  for (;;) {
    const int64_t unit = seen & kUnitMask;
    if (unit >= job_units.load(std::memory_order_relaxed)) return false;
    if (index >= job_helpers.load(std::memory_order_relaxed)) return false;
    uint64_t copy[kWords];
    for (int i = 0; i < kWords; i++) copy[i] = words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!claim.compare_exchange_strong(seen, seen + 1, std::memory_order_seq_cst)) continue;
    memcpy(&job, copy, sizeof job);
    const uint64_t generation = seen >> kUnitBits;
    compute_unit(job, unit, generation, self.buffer);
    if (take(unit, generation, kStoring)) store_unit(job, unit, generation, self.buffer);
    return true;
  }
}

// Leave the caller's processor, on which a helper only takes time from the caller. A scheduler that shares processors by
// groups of processes may keep all threads of one group on one processor, beside other work that has the rest.
void leave_caller(int64_t& moved_ns) {
  const int processor = sched_getcpu();
  if (processor < 0 || processor != caller_processor.load(std::memory_order_relaxed)) return;
  const int64_t time_ns = now_ns();
  if (time_ns - moved_ns < kBetweenMovesNs) return;
  moved_ns = time_ns;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

void* helper_main(void* argument) {
  const int index = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  Helper& self = *helpers[index].load(std::memory_order_seq_cst);
  int64_t moved_ns = 0;
  for (;;) {
    const uint32_t seen = epoch.load(std::memory_order_seq_cst);
    leave_caller(moved_ns);
    bool helped = true;
    while (helped) {
      self.computing.store(true, std::memory_order_seq_cst);
      helped = help(index, self);
      self.computing.store(false, std::memory_order_seq_cst);
    }
    int spins = 0;
    while (epoch.load(std::memory_order_acquire) == seen && spins++ < kSpins) pause();
    if (epoch.load(std::memory_order_acquire) != seen) continue;
    sleeping.fetch_add(1, std::memory_order_seq_cst);
    if (epoch.load(std::memory_order_seq_cst) == seen) futex(FUTEX_WAIT_PRIVATE, seen);
    sleeping.fetch_sub(1, std::memory_order_seq_cst);
  }
  return nullptr;
}

// Start helpers until there are as many as wanted, or as the system allows.
void start_helpers(int wanted) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  while (num_helpers < wanted) {
    void* memory = take_memory(alignof(Helper), sizeof(Helper));
    if (!memory) break;
    Helper* helper = new (memory) Helper();
    helpers[num_helpers].store(helper, std::memory_order_seq_cst);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, helper_main, reinterpret_cast<void*>(intptr_t(num_helpers))) != 0) {
      helpers[num_helpers].store(nullptr, std::memory_order_seq_cst);
      free(helper);
      break;
    }
    pthread_detach(thread);
    num_helpers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void publish(const Job& job, int64_t num_units, int wanted, uint64_t generation) {
  claim.store(generation << kUnitBits | kUnitMask, std::memory_order_seq_cst);  // closed while the job changes
  std::atomic_thread_fence(std::memory_order_release);
  uint64_t copy[kWords];
  memcpy(copy, &job, sizeof job);
  for (int i = 0; i < kWords; i++) words[i].store(copy[i], std::memory_order_relaxed);
  job_units.store(num_units, std::memory_order_relaxed);
  job_helpers.store(wanted, std::memory_order_relaxed);
  caller_processor.store(sched_getcpu(), std::memory_order_relaxed);
  claim.store(generation << kUnitBits, std::memory_order_seq_cst);
  epoch.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping.load(std::memory_order_seq_cst) > 0) futex(FUTEX_WAKE_PRIVATE, num_helpers > wanted ? kMaxThreads : wanted);
}

thread_local float caller_buffer[kBufferFloats];

}  // namespace

void run(const Job& job, int64_t num_units, int num_threads) {
  float* buffer = caller_buffer;
  const int wanted = (num_threads < kMaxThreads ? num_threads : kMaxThreads) - 1;
  // A second thread that calls meanwhile computes alone.
  if (wanted < 1 || num_units < 2 || in_use.test_and_set(std::memory_order_acquire)) {
    for (int64_t unit = 0; unit < num_units; unit++) {
      float* part = part_of(job, unit, buffer);
      job.compute(job.task, unit, part);
      if (job.num_first && unit >= job.num_first) job.amend(job.task, unit, part);
      job.store(job.task, unit, part);
    }
    return;
  }
  if (num_helpers < wanted) start_helpers(wanted);
  const uint64_t generation = (claim.load(std::memory_order_relaxed) >> kUnitBits) + 1;
  publish(job, num_units, wanted, generation);
  int64_t started_ns = now_ns(), longest_ns = kLeastPatienceNs;
  uint64_t seen = claim.load(std::memory_order_acquire);
  while (int64_t(seen & kUnitMask) < num_units) {
    if (!claim.compare_exchange_weak(seen, seen + 1, std::memory_order_seq_cst)) continue;
    const int64_t unit = seen & kUnitMask;
    compute_unit(job, unit, generation, buffer);
    if (unit >= job.num_first || take(unit, generation, kStoring)) store_unit(job, unit, generation, buffer);
    const int64_t ended_ns = now_ns();
    if (ended_ns - started_ns > longest_ns) longest_ns = ended_ns - started_ns;
    started_ns = ended_ns;
    seen = claim.load(std::memory_order_acquire);
  }
  for (int64_t unit = 0; unit < num_units; unit++) finish(job, unit, generation, started_ns + longest_ns, buffer);
  in_use.clear(std::memory_order_release);
}

void wait_for_helpers() {
  for (const std::atomic<Helper*>& each : helpers) {
    const Helper* helper = each.load(std::memory_order_seq_cst);
    while (helper && helper->computing.load(std::memory_order_seq_cst)) sched_yield();
  }
}

void* lend(int64_t bytes) {
  constexpr int64_t room = 16 * kMostLentBytes;
  thread_local char* memory = nullptr;
  thread_local int64_t lent = 0;
  if (!memory) memory = static_cast<char*>(take_memory(64, room));
  if (!memory) return nullptr;
  bytes = (bytes + 63) / 64 * 64;
  if (lent + bytes > room) wait_for_helpers(), lent = 0;
  lent += bytes;
  return memory + lent - bytes;
}

}  // namespace lorikeet
