// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, for a command that has something to save.
#pragma once

#include <csignal>

namespace rivulet {

// While it lives, the first SIGINT or SIGTERM only says so, and a second one ends the process, as
// ever. Thread: one of these at a time.
class Interruption {
 public:
  Interruption() {
    struct sigaction action = {};
    action.sa_handler = [](int) { came_ = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
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
  static bool came() { return came_ != 0; }

 private:
  static inline volatile std::sig_atomic_t came_ = 0;
  struct sigaction old_int_ = {}, old_term_ = {};
};

}  // namespace rivulet
