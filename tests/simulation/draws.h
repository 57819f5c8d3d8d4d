// SPDX-License-Identifier: Apache-2.0
// Draws: the parts of what simulated clients ask for, each drawn from choices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/clients.h"

namespace rivulet::simulated {

// Thread: one.
class Draws {
 public:
  // All are borrowed.
  Draws(Choices* choices, const World& world, const TurnClock& clock, Clients* clients)
      : choices_(choices), world_(world), clock_(clock), clients_(clients) {}

  std::string Tenant();
  std::string Mark();
  Priority AnyPriority();
  absl::Time Deadline();
  uint64_t Seed(int64_t near = 0);  // `near`: what may be added to it
  std::vector<int32_t> Tokens(int most);
  // One of several begins as others do.
  std::vector<int32_t> Prompt();
  PromptCacheSpec Cache(int64_t longest);
  // Mostly an open session, sometimes one that is gone, is another tenant's, or never was. `asked`
  // is told which.
  SessionRef Session(Asked* asked);
  // What the client believes that the session, or its tokens before the position, are: mostly that
  // of one state in which it may be.
  void Hash(const Asked& asked, SessionRef* ref);
  GenerateSpec Generate();

 private:
  Choices* const choices_;
  const World& world_;
  const TurnClock& clock_;
  Clients* const clients_;
};

}  // namespace rivulet::simulated
