// Makes a job from two or three functions over a task of their own type.
#pragma once

#include <string.h>

#include "pool.h"

namespace lorikeet {
namespace {

// Compute and store units 0 to num_units - 1 of a task, at most kMaxUnits in a row.
template <typename T, void (*compute)(const T&, int64_t, float*), void (*store)(const T&, int64_t, const float*)>
void run_job(const T& task, int64_t num_units, int64_t num_threads) {
  struct Part {
    T task;
    int64_t first;
  };
  static_assert(sizeof(Part) <= kTaskBytes && std::is_trivially_copyable<Part>::value, "a job has room for the task");
  for (int64_t first = 0; first < num_units; first += kMaxUnits) {
    const Part part = {task, first};
    Job job = {
        [](const void* argument, int64_t unit, float* buffer) {
          const Part& mine = *static_cast<const Part*>(argument);
          compute(mine.task, mine.first + unit, buffer);
        },
        nullptr,
        [](const void* argument, int64_t unit, const float* buffer) {
          const Part& mine = *static_cast<const Part*>(argument);
          store(mine.task, mine.first + unit, buffer);
        },
        0,
        {}};
    memcpy(job.task, &part, sizeof part);
    run(job, num_units - first < kMaxUnits ? num_units - first : kMaxUnits, int(num_threads));
  }
}

// Compute and store a task with first units (`pool.h`), at most kMaxUnits in all.
template <typename T, void (*compute)(const T&, int64_t, float*), void (*amend)(const T&, int64_t, float*),
          void (*store)(const T&, int64_t, const float*)>
void run_amended_job(const T& task, int64_t num_first, int64_t num_units, int64_t num_threads) {
  static_assert(sizeof(T) <= kTaskBytes && std::is_trivially_copyable<T>::value, "a job has room for the task");
  Job job = {
      [](const void* argument, int64_t unit, float* buffer) { compute(*static_cast<const T*>(argument), unit, buffer); },
      [](const void* argument, int64_t unit, float* buffer) { amend(*static_cast<const T*>(argument), unit, buffer); },
      [](const void* argument, int64_t unit, const float* buffer) {
        store(*static_cast<const T*>(argument), unit, buffer);
      },
      num_first,
      {}};
  memcpy(job.task, &task, sizeof task);
  run(job, num_units, int(num_threads));
}

}  // namespace
}  // namespace lorikeet
