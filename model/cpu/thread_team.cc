// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "model/base/thread.h"

namespace rivulet {
namespace {

// About 20 us: longer than the engine needs between two steps, far shorter than a scheduler's
// slice.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// CPUs that the control group grants, or a large number where it sets no quota.
int QuotaCores() {
  double quota = 0, period = 0;
  std::string word;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> word >> period && word != "max") {
    quota = std::atof(word.c_str());
  } else if (std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); !(v1 >> quota)) {
    quota = 0;
  } else if (std::ifstream v1p("/sys/fs/cgroup/cpu/cpu.cfs_period_us"); !(v1p >> period)) {
    period = 0;
  }
  return quota > 0 && period > 0 ? std::max(1, int(quota / period)) : 1 << 20;
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(affinity, QuotaCores()));
}

void SpinThenWait(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  word.wait(old, std::memory_order_acquire);
}

void SpinBarrier::Wait() {
  if (threads_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    generation_.notify_all();
    return;
  }
  SpinThenWait(generation_, generation);
}

ThreadTeam::ThreadTeam(int threads) {
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i] {
      NameThread("cpu-worker");
      WorkerLoop(i);
    });
  }
}

ThreadTeam::~ThreadTeam() {
  body_ = nullptr;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(absl::FunctionRef<void(int)> body) {
  if (workers_.empty()) return body(0);
  body_ = &body;
  finished_.store(0, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  body(0);
  const auto expected = static_cast<uint32_t>(workers_.size());
  for (uint32_t done = finished_.load(std::memory_order_acquire); done != expected;
       done = finished_.load(std::memory_order_acquire)) {
    SpinThenWait(finished_, done);
  }
}

void ThreadTeam::WorkerLoop(int index) {
  for (uint32_t epoch = 0;;) {
    SpinThenWait(epoch_, epoch);
    ++epoch;  // a Run never begins before all workers have finished the one before
    if (body_ == nullptr) return;
    (*body_)(index);
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_all();
  }
}

}  // namespace rivulet
