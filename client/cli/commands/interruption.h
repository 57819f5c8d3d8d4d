// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, for a command that has something to save or to stop.
#pragma once

#include <csignal>

namespace rivulet {

// While an object exists, SIGINT and SIGTERM are only recorded. `flags`: flags of sigaction(); by
// default a second signal ends the process as usual. Thread: one object at a time.
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
  // Whether the last signal was SIGINT; if so, forgets it.
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
