// SPDX-License-Identifier: Apache-2.0
// Not absl's failure_signal_handler, which gives a signal stack to only one thread, and passes its
// writer text with addresses but without the signal's number. Everything after Handle's begin is
// async-signal-safe: no allocation, no locks, no stdio.
#include "server/process/crash_handler.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"
#include "model/base/thread.h"
#include "server/base/line_writer.h"
#include "server/engine/loop/activity.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

constexpr struct {
  int number;
  const char* name;
} kSignals[] = {{SIGSEGV, "SIGSEGV"},
                {SIGBUS, "SIGBUS"},
                {SIGILL, "SIGILL"},
                {SIGFPE, "SIGFPE"},
                {SIGABRT, "SIGABRT"}};

std::atomic<bool> crashing = false;

// A line of JSON in fixed memory. Text that does not fit is left out.
class Line {
 public:
  void Raw(const char* text) { Append(text, std::strlen(text)); }
  void Quoted(const char* text) {
    Raw("\"");
    for (; *text != '\0'; ++text) {
      const bool plain = *text >= ' ' && *text <= '~' && *text != '"' && *text != '\\';
      Append(plain ? text : "?", 1);
    }
    Raw("\"");
  }
  // At least `width` digits.
  void Number(int64_t value, int width = 1) {
    char digits[24];
    size_t at = sizeof(digits);
    const bool negative = value < 0;
    // Works on negative numbers, because the least int64 has no positive counterpart.
    for (int64_t left = negative ? value : -value; left != 0 || width > 0; left /= 10, --width) {
      digits[--at] = static_cast<char>('0' - left % 10);
    }
    if (negative) digits[--at] = '-';
    Append(digits + at, sizeof(digits) - at);
  }
  size_t room() const { return sizeof(bytes_) - size_; }

  // If nobody reads, gives up after two seconds.
  void Write() const {
    int tries = 2000 / kWritePatienceMs;
    WriteWhile(STDERR_FILENO, absl::string_view(bytes_, size_), [&tries] { return --tries > 0; });
  }

 private:
  void Append(const char* text, size_t count) {
    if (count > room()) return;
    std::memcpy(bytes_ + size_, text, count);
    size_ += count;
  }

  char bytes_[8 << 10];
  size_t size_ = 0;
};

// UTC as in the other lines; not by gmtime, which takes a lock.
void AddTime(Line* line) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t second = now.tv_sec % 86400;
  // Days since 0000-03-01, so that a leap day is the last of its year.
  const int64_t days = now.tv_sec / 86400 + 719468;
  const int64_t era = days / 146097, day_of_era = days % 146097;
  const int64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year =
      day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t march_month = (5 * day_of_year + 2) / 153;
  const int64_t month = march_month < 10 ? march_month + 3 : march_month - 9;
  line->Number(year_of_era + era * 400 + (month <= 2 ? 1 : 0), 4);
  line->Raw("-");
  line->Number(month, 2);
  line->Raw("-");
  line->Number(day_of_year - (153 * march_month + 2) / 5 + 1, 2);
  line->Raw("T");
  line->Number(second / 3600, 2);
  line->Raw(":");
  line->Number(second / 60 % 60, 2);
  line->Raw(":");
  line->Number(second % 60, 2);
  line->Raw(".");
  line->Number(now.tv_nsec / 1'000'000, 3);
  line->Raw("Z");
}

uintptr_t StackPointer(const void* context) {
  const mcontext_t& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<uintptr_t>(registers.gregs[REG_RSP]);
#elif defined(__aarch64__)
  return static_cast<uintptr_t>(registers.sp);
#else
  static_cast<void>(registers);
  return 0;
#endif
}

// Why the kernel sent the signal, as far as it says.
const char* Cause(const siginfo_t& info, const void* context) {
  if (info.si_code <= 0) return info.si_pid == getpid() ? "this process" : "another process";
  if (info.si_signo == SIGFPE)
    return info.si_code == FPE_INTDIV ? "division by zero" : "arithmetic";
  if (info.si_signo == SIGILL) return "instruction";
  if (info.si_signo == SIGBUS) {
    // A mapped file, such as the weights, has become shorter.
    return info.si_code == BUS_ADRERR ? "no memory behind the address" : "bad address";
  }
  constexpr uintptr_t kNear = 64 << 10;
  const uintptr_t address = reinterpret_cast<uintptr_t>(info.si_addr);
  const uintptr_t stack = StackPointer(context);
  if (info.si_code == SI_KERNEL) return "bad address";
  if (address < kNear) return "null pointer";
  if (stack != 0 && address + kNear > stack && address < stack + kNear) return "stack overflow";
  return info.si_code == SEGV_ACCERR ? "access not allowed" : "address not mapped";
}

void AddLoops(Line* line) {
  constexpr size_t kMostBytes = 256;  // of one loop
  line->Raw(",\"loops\":[");
  bool first = true;
  for (size_t i = 0; i < LoopActivity::kMaxLoops && line->room() > kMostBytes; ++i) {
    LoopState state;
    if (!ReadLoop(i, &state)) continue;
    line->Raw(first ? "{\"model\":" : ",{\"model\":");
    first = false;
    line->Quoted(state.model);
    line->Raw(",\"phase\":");
    line->Quoted(Name(state.phase));
    line->Raw(",\"rows\":");
    line->Number(state.rows);
    line->Raw(",\"steps\":");
    line->Number(state.steps);
    line->Raw(",\"runs\":");
    line->Number(state.runs);
    line->Raw("}");
  }
  line->Raw("]");
}

void WriteLine(const siginfo_t& info, const void* context) {
  Line line;
  line.Raw("{\"ts\":\"");
  AddTime(&line);
  line.Raw("\",\"level\":\"error\",\"event\":\"crash\",\"signal\":");
  for (const auto& signal : kSignals) {
    if (signal.number == info.si_signo) line.Quoted(signal.name);
  }
  line.Raw(",\"cause\":");
  line.Quoted(Cause(info, context));
  char thread[16] = "";
  prctl(PR_GET_NAME, thread);
  line.Raw(",\"thread\":");
  line.Quoted(thread);
  line.Raw(",\"method\":");
  line.Quoted(CallNote::Current());
  AddLoops(&line);
  line.Raw("}\n");
  line.Write();
}

void Handle(int signal, siginfo_t* info, void* context) {
  if (crashing.exchange(true)) {
    // Another thread is writing its line and then ends the process; this wait is bounded.
    for (int i = 0; i < 50; ++i) poll(nullptr, 0, 100);
  } else {
    WriteLine(*info, context);
  }
  struct sigaction normal {};
  normal.sa_handler = SIG_DFL;
  sigaction(signal, &normal, nullptr);
  sigset_t this_one;
  sigemptyset(&this_one);
  sigaddset(&this_one, signal);
  pthread_sigmask(SIG_UNBLOCK, &this_one, nullptr);
  raise(signal);
  // Only the first process of a container gets here: a signal that it sends to itself does not end
  // it. After the return the fault happens again and ends the process.
  if (info->si_code <= 0) _exit(128 + signal);
}

}  // namespace

void InstallCrashHandler() {
  struct sigaction action {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (const auto& signal : kSignals) {
    struct sigaction present {};
    sigaction(signal.number, nullptr, &present);
    if (present.sa_handler != SIG_DFL) continue;
    sigaction(signal.number, &action, nullptr);
    if (signal.number == SIGSEGV) TurnOnSignalStacks();
  }
}

}  // namespace rivulet
