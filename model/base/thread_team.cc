// SPDX-License-Identifier: Apache-2.0
#include "model/base/thread_team.h"

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

// The CPUs that the control group allows, or a large number without a quota.
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
    // notify_all wakes nobody if it sees no waiter. So it must not look for waiters before the
    // store is visible: a waiter would still see the old generation, and sleep for ever.
    generation_.store(generation + 1, std::memory_order_seq_cst);
    generation_.notify_all();
    return;
  }
  SpinThenWait(generation_, generation);
}

ThreadTeam::ThreadTeam(int threads) : barrier_(threads), choice_(threads) {
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.thread = std::thread([this, &worker, i] {
      NameThread("cpu-worker");
      worker.core_wait.WatchThisThread();
      WorkerLoop(worker, i);
    });
  }
}

ThreadTeam::~ThreadTeam() {
  body_ = nullptr;
  for (const auto& worker : workers_) Wake(*worker);
  for (const auto& worker : workers_) worker->thread.join();
}

void ThreadTeam::Wake(Worker& worker) {
  worker.runs.fetch_add(1, std::memory_order_release);
  worker.runs.notify_one();
}

void ThreadTeam::Run(Body body) {
  if (workers_.empty()) return body(0, barrier_);
  body_ = &body;
  finished_.store(0, std::memory_order_relaxed);
  const int helpers = barrier_.threads() - 1;
  for (int i = 0; i < helpers; ++i) Wake(*workers_[static_cast<size_t>(i)]);
  body(0, barrier_);
  const auto expected = static_cast<uint32_t>(helpers);
  for (uint32_t done = finished_.load(std::memory_order_acquire); done != expected;
       done = finished_.load(std::memory_order_acquire)) {
    SpinThenWait(finished_, done);
  }
  ChooseSize();
}

void ThreadTeam::ChooseSize() {
  const Clock::time_point now = Clock::now();
  const int64_t window = std::chrono::nanoseconds(now - window_begin_).count();
  if (window < TeamSize::kWindow) return;
  window_begin_ = now;
  if (const std::thread::id caller = std::this_thread::get_id(); caller != owner_) {
    owner_ = caller;
    owner_wait_.WatchThisThread();
  }
  int64_t longest = owner_wait_.Take();
  for (int i = 1; i < barrier_.threads(); ++i) {
    longest = std::max(longest, workers_[static_cast<size_t>(i - 1)]->core_wait.Take());
  }
  choice_.Observe(window, longest);
  if (const int threads = choice_.threads(); threads > barrier_.threads()) {
    // Waiting before it joined does not count.
    (void)workers_[static_cast<size_t>(threads - 2)]->core_wait.Take();
  }
  barrier_.SetThreads(choice_.threads());
}

void ThreadTeam::WorkerLoop(Worker& self, int index) {
  for (uint32_t runs = 0;;) {
    SpinThenWait(self.runs, runs);
    ++runs;  // a Run never begins before all its workers have finished the one before
    if (body_ == nullptr) return;
    (*body_)(index, barrier_);
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_all();
  }
}

}  // namespace rivulet
