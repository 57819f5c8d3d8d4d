// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, for a command that has something to save or to stop.
#pragma once

#include <csignal>

namespace rivulet {

// While it lives, SIGINT and SIGTERM only say so. `flags`: those of sigaction(); by default a
// second signal ends the process, as ever. Thread: one of these at a time.
class Interruption {
 public:
  explicit Interruption(unsigned flags = SA_RESETHAND | SA_RESTART) {
    struct sigaction action = {};
    action.sa_handler = [](int number) { last_ = number; };
    action.sa_flags = static_cast<int>(flags);
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  ~Interruption() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }

  // Thread: any.
  static bool came() { return last_ != 0; }
  // Whether the last signal was SIGINT; if so, it is as if none had come.
  static bool TakeInt() {
    if (last_ != SIGINT) return false;
    last_ = 0;
    return true;
  }

 private:
  static inline volatile std::sig_atomic_t last_ = 0;
  struct sigaction old_int_ = {}, old_term_ = {};
};

}  // namespace rivulet
