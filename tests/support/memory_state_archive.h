// SPDX-License-Identifier: Apache-2.0
// A StateArchive in memory, which answers at once or when the test says so. Thread: one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/sessions/replicated/state_archive.h"

namespace rivulet {

class MemoryStateArchive final : public StateArchive {
 public:
  void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) override {
    Do([this, state = std::move(state), expiry, done = std::move(done)] {
      if (fails) return done(absl::UnavailableError("told to fail"));
      const ArchivedState made = state();
      puts.emplace_back(made.name, expiry);
      const bool is_new = !states.contains(made.name);
      if (is_new) states[made.name] = made.bytes();
      done(is_new ? made.size : 0);
    });
  }
  void Drop(std::string name) override { states.erase(name); }
  void Get(std::string name, GetDone done) override {
    Do([this, name = std::move(name), done = std::move(done)] {
      if (fails) return done(absl::UnavailableError("told to fail"));
      const auto found = states.find(name);
      done(found == states.end() ? "" : found->second);
    });
  }
  // Carries out the held calls, oldest first.
  void Deliver() {
    while (!held.empty()) DeliverOne();
  }
  void DeliverOne() {
    const std::function<void()> call = std::move(held.front());
    held.pop_front();
    call();
  }

  bool fails = false, holds = false;
  std::map<std::string, std::string> states;                 // by name
  std::vector<std::pair<std::string, absl::Duration>> puts;  // names and expiries
  std::deque<std::function<void()>> held;

 private:
  void Do(std::function<void()> call) {
    if (!holds) return call();
    held.push_back(std::move(call));
  }
};

}  // namespace rivulet
