// SPDX-License-Identifier: Apache-2.0
// Fibers: stacks between which one operating system thread switches. Thread: one at a time.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace rivulet::cuda_emulator {

class Fiber {
 public:
  static constexpr size_t kStackBytes = size_t{64} << 10;

  Fiber();  // maps a stack with an inaccessible page below
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next Resume() start `entry`, which must never return (it ends with a last Yield).
  void Prepare(void (*entry)());
  // Runs the fiber, and those that it switches to, until one yields.
  void Resume();
  // On the fiber: returns to the caller of Resume().
  void Yield();
  // On the fiber: continues on another one.
  void SwitchTo(Fiber& next);

 private:
  char* memory_;
  // Bytes at the top that stay free. Otherwise all stacks would begin at the same offset in a page,
  // and compete for the same few cache lines.
  size_t skipped_;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace rivulet::cuda_emulator
