// SPDX-License-Identifier: Apache-2.0
#include "model/base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>

namespace rivulet {
namespace {

// Enough for the registers of any CPU (11 KiB with AMX) and for a line of the log. Pages are taken
// when a handler runs.
constexpr size_t kSignalStackBytes = 64 << 10;

std::atomic<bool> signal_stacks = false;

class SignalStack {
 public:
  SignalStack()
      : memory_(mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {
    if (memory_ == MAP_FAILED) return;  // the thread then has no such stack, as before
    stack_t stack{};
    stack.ss_sp = memory_;
    stack.ss_size = kSignalStackBytes;
    sigaltstack(&stack, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack() {
    if (memory_ == MAP_FAILED) return;
    stack_t off{};
    off.ss_flags = SS_DISABLE;
    sigaltstack(&off, nullptr);
    munmap(memory_, kSignalStackBytes);
  }

 private:
  void* const memory_;
};

}  // namespace

void NameThread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  UseSignalStack();
}

void UseSignalStack() {
  if (!signal_stacks.load(std::memory_order_relaxed)) return;
  thread_local const SignalStack stack;
}

void TurnOnSignalStacks() {
  signal_stacks = true;
  UseSignalStack();
}

}  // namespace rivulet
