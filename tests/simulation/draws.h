// SPDX-License-Identifier: Apache-2.0
// Draws: the parts of simulated requests, each drawn from choices.
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
  uint64_t Seed(int64_t near = 0);  // `near`: a number that may be added to it
  std::vector<int32_t> Tokens(int most);
  // One of several begins like other prompts.
  std::vector<int32_t> Prompt();
  PromptCacheSpec Cache(int64_t longest);
  // Mostly an open session, sometimes one that is gone, belongs to another tenant, or never
  // existed. Notes the session in `asked`.
  SessionRef Session(Asked* asked);
  // Sets the hash that the client expects of the session, or of its tokens before the position:
  // mostly the hash of one of its possible states.
  void Hash(const Asked& asked, SessionRef* ref);
  GenerateSpec Generate();

 private:
  Constraint Choice();

  Choices* const choices_;
  const World& world_;
  const TurnClock& clock_;
  Clients* const clients_;
};

}  // namespace rivulet::simulated
