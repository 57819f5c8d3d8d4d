// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__)
// Saves the callee-saved registers of the System V ABI on this stack, and continues on the other.
// swapcontext() would do, at thirty times the cost: it calls the kernel for the signal mask.
extern "C" void rivulet_fiber_switch(void** save_to, void* go_to);
asm(R"(
.text
.globl rivulet_fiber_switch
.type rivulet_fiber_switch,@function
rivulet_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rivulet_fiber_switch,.-rivulet_fiber_switch
)");
#endif

namespace rivulet::cuda_emulator {
namespace {

// Where Resume() was called.
#if defined(__x86_64__)
void* caller = nullptr;
#else
ucontext_t caller;
#endif

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::Fiber() {
  void* p = mmap(nullptr, kStackBytes + PageBytes(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, PageBytes(), PROT_NONE) != 0) abort();
  memory_ = static_cast<char*>(p);
  static size_t made = 0;
  skipped_ = made++ % 64 * 64;
}

Fiber::~Fiber() { munmap(memory_, kStackBytes + PageBytes()); }

#if defined(__x86_64__)

void Fiber::Prepare(void (*entry)()) {
  auto* top = reinterpret_cast<uintptr_t*>(memory_ + PageBytes() + kStackBytes - skipped_);
  // At a function's first instruction the stack pointer is 8 below a multiple of 16.
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
}
void Fiber::Resume() { rivulet_fiber_switch(&caller, stack_pointer_); }
void Fiber::Yield() { rivulet_fiber_switch(&stack_pointer_, caller); }
void Fiber::SwitchTo(Fiber& next) { rivulet_fiber_switch(&stack_pointer_, next.stack_pointer_); }

#else

void Fiber::Prepare(void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory_ + PageBytes();
  context_.uc_stack.ss_size = kStackBytes - skipped_;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}
void Fiber::Resume() { swapcontext(&caller, &context_); }
void Fiber::Yield() { swapcontext(&context_, &caller); }
void Fiber::SwitchTo(Fiber& next) { swapcontext(&context_, &next.context_); }

#endif

}  // namespace rivulet::cuda_emulator
