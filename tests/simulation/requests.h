// SPDX-License-Identifier: Apache-2.0
// Requests: those of simulated clients that have not ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/truth.h"
#include "tests/simulation/turn_clock.h"

namespace rivulet::simulated {

struct Client;

// A request that has not ended.
struct Asked {
  int number = 0;
  std::string what;
  RequestId id = 0;
  std::string tenant;  // on whose account
  Priority priority = Priority::kNormal;
  absl::Time arrival;
  bool first = false;        // no request of its tenant can get slots before it
  int64_t runs_before = 0;   // when it came ...
  int tenants = 0;           // ... and the tenants that may wait or hold slots, its own among them
  Client* client = nullptr;  // null: none, or an id that never was
  bool foreign = false;      // under another tenant's name, or such an id
  bool closes = false;
  bool goes_on = false;          // may go on from a kept state
  int turn = 0;                  // of the engine when it was asked ...
  std::optional<int> cancelled;  // ... and cancelled
  absl::Time deadline = absl::InfiniteFuture();
  std::string refusal;  // the reason for which it must be refused at once; empty: none
  int places = 1;
  int opens = 1;  // sessions, if it opens any
  int64_t tokens = 0;
  bool asleep = false;                   // reads nothing before the rest
  std::optional<absl::Time> full_since;  // its reader has not read since then, and it is full
  bool was_full = false;                 // ... at the end of the turn before
  int64_t held_back = 0;  // tokens that may come at once although they were not drawn in one run
  std::unique_ptr<ReplyListener> listener;  // of a Generate
  std::shared_ptr<Reply> reply;
  std::optional<SessionState> restores;
};

// Oldest first. Thread: one.
class Requests {
 public:
  explicit Requests(const TurnClock& clock) : clock_(clock) {}  // borrowed

  // A request is about to be sent. It stays where it is until Remove.
  Asked* Start(const std::string& what);
  // The engine accepted it, when the backend had had `runs` runs.
  void Accept(Asked* asked, RequestId id, int64_t runs);
  void Remove(const Asked* asked);

  // Any of them. REQUIRES: !empty().
  Asked* Choose(Choices* choices);
  int last_number() const { return last_number_; }
  int places() const;      // of all
  int64_t tokens() const;  // of all
  // With `last`, its tenant has more than it may.
  bool TenantTookTooMuch(const Asked& last, const World& world) const;

  bool empty() const { return asked_.empty(); }
  size_t size() const { return asked_.size(); }
  auto begin() { return asked_.begin(); }
  auto end() { return asked_.end(); }
  auto begin() const { return asked_.begin(); }
  auto end() const { return asked_.end(); }

 private:
  const TurnClock& clock_;
  std::list<Asked> asked_;
  int last_number_ = 0;
};

}  // namespace rivulet::simulated
