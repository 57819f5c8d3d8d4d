// SPDX-License-Identifier: Apache-2.0
// A StateArchive in memory, which answers at once or when it is told to. Thread: one.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/sessions/shared/state_archive.h"

namespace rivulet {

class MemoryStateArchive final : public StateArchive {
 public:
  void Put(std::string name, std::function<std::string()> bytes, absl::Duration /*expiry*/,
           PutDone done) override {
    auto put = [this, name = std::move(name), bytes = std::move(bytes), done = std::move(done)] {
      if (fails) return done(absl::UnavailableError("told to fail"));
      states.try_emplace(name, bytes());
      done(absl::OkStatus());
    };
    if (!holds) return put();
    held.push_back(std::move(put));
  }
  void Get(std::string name, GetDone done) override {
    if (fails) return done(absl::UnavailableError("told to fail"));
    const auto found = states.find(name);
    done(found == states.end() ? "" : found->second);
  }
  // Does what it holds.
  void Deliver() {
    for (const auto& put : std::exchange(held, {})) put();
  }

  bool fails = false, holds = false;
  std::map<std::string, std::string> states;  // by name
  std::vector<std::function<void()>> held;
};

}  // namespace rivulet
