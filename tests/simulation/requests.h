// SPDX-License-Identifier: Apache-2.0
// Requests: the requests of simulated clients that have not ended.
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
  std::string tenant;  // whose quota it uses
  Priority priority = Priority::kNormal;
  absl::Time arrival;
  bool first = false;        // no request of its tenant can get slots before it
  int64_t runs_before = 0;   // when it arrived ...
  int tenants = 0;           // ... and the tenants that may wait or hold slots, its own among them
  Client* client = nullptr;  // null: none, or an id that never existed
  bool foreign = false;      // another tenant's session, or such an id
  bool closes = false;
  bool goes_on = false;          // may continue from a kept state
  int turn = 0;                  // of the engine when it was sent ...
  std::optional<int> cancelled;  // ... and cancelled
  absl::Time deadline = absl::InfiniteFuture();
  std::string refusal;  // reason with which it must be refused at once; empty: none
  int places = 1;
  int opens = 1;  // sessions that it opens, if any
  int64_t tokens = 0;
  bool asleep = false;                   // reads nothing before the rest
  std::optional<absl::Time> full_since;  // full since then, and its reader has not read
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

  // Adds a request that is about to be sent. Its address is valid until Remove.
  Asked* Start(const std::string& what);
  // The engine accepted the request, after `runs` runs of the backend.
  void Accept(Asked* asked, RequestId id, int64_t runs);
  void Remove(const Asked* asked);

  // A random request. REQUIRES: !empty().
  Asked* Choose(Choices* choices);
  int last_number() const { return last_number_; }
  int places() const;      // of all requests
  int64_t tokens() const;  // of all requests
  // Whether the tenant of `last` exceeds its share, `last` included.
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
