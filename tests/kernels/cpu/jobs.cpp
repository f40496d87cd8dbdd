// Runs jobs of the pool with first units and without, in which units now and then take far longer than others, as those
// of a thread that lost its processor do. Prints the number of jobs, or the first unit whose result is another than that
// of one thread.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "job.h"

using namespace lorikeet;

namespace {

constexpr int64_t kUnits = 48;

// What `amend` reads of first units. Helpers that come late read it, too, so it is read and written number by number.
std::atomic<uint64_t> first_results[kUnits];
uint64_t results[kUnits];

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a * 0x9e3779b97f4a7c15u) ^ (b + 0x7f4a7c15u);
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9u;
}

struct Task {
  uint64_t seed;
  int64_t num_first;
  bool is_slow;
};

void put(float* buffer, uint64_t value) { memcpy(buffer, &value, sizeof value); }

uint64_t get(const float* buffer) {
  uint64_t value;
  memcpy(&value, buffer, sizeof value);
  return value;
}

void compute(const Task& task, int64_t unit, float* buffer) {
  const uint64_t value = mixed(task.seed, uint64_t(unit));
  if (task.is_slow && value % 61 == 0) usleep(200);
  put(buffer, value);
}

void amend(const Task& task, int64_t unit, float* buffer) {
  uint64_t sum = get(buffer);
  for (int64_t i = 0; i < task.num_first; i++) {
    sum += mixed(first_results[i].load(std::memory_order_relaxed), uint64_t(unit));
  }
  put(buffer, sum);
}

void store(const Task& task, int64_t unit, const float* buffer) {
  if (unit < task.num_first) first_results[unit].store(get(buffer), std::memory_order_relaxed);
  else results[unit] = get(buffer);
}

uint64_t expected(const Task& task, int64_t unit) {
  uint64_t sum = mixed(task.seed, uint64_t(unit));
  for (int64_t i = 0; i < task.num_first; i++) sum += mixed(mixed(task.seed, uint64_t(i)), uint64_t(unit));
  return sum;
}

}  // namespace

int main(int, char** arguments) {
  const int num_jobs = atoi(arguments[1]);
  for (int job = 0; job < num_jobs; job++) {
    const uint64_t random = mixed(uint64_t(job), 1);
    const int64_t units = 1 + int64_t(random % kUnits), first = int64_t((random >> 8) % uint64_t(units));
    const Task task = {random, first, job % 4 == 0};
    const int threads = 1 + int((random >> 16) % 5);
    for (int64_t unit = 0; unit < units; unit++) results[unit] = 0, first_results[unit] = 0;
    if (first) run_amended_job<Task, compute, amend, store>(task, first, units, threads);
    else run_job<Task, compute, store>(task, units, threads);
    for (int64_t unit = first; unit < units; unit++) {
      if (results[unit] == expected(task, unit)) continue;
      printf("unit %lld of job %d is another\n", static_cast<long long>(unit), job);
      return 1;
    }
  }
  wait_for_helpers();
  printf("%d jobs\n", num_jobs);
  return 0;
}
