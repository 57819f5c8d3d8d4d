// SPDX-License-Identifier: Apache-2.0
// What simulated clients know: of their sessions, of their requests that have not ended, of the
// snapshots that they took.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/reply.h"
#include "server/engine/request.h"
#include "server/sessions/session.h"
#include "tests/simulation/truth.h"

namespace rivulet::simulated {

// A client session as its clients know it.
struct Client {
  int number = 0;
  SessionId id;
  std::string tenant;
  uint64_t seed = 0;
  absl::Duration idle;
  std::vector<SessionState> maybe;  // the states that explain all that was seen; at least one
  std::vector<int32_t> appended;    // what was given last; it may be given again
  bool closing = false;             // CloseSession was called
  bool gone = false;                // closed or expired for certain ...
  int gone_turn = 0;                // ... in this turn
  absl::Time used_low, used_high;   // last use lies between
};
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
  int64_t held_back = 0;  // tokens that may come at once although they were not drawn in one run
  std::unique_ptr<ReplyListener> listener;  // of a Generate
  std::shared_ptr<Reply> reply;
  std::optional<SessionState> restores;
};
struct Kept {  // a snapshot
  std::string bytes;
  std::string tenant;
  uint64_t seed = 0;
  SessionState state;
};

}  // namespace rivulet::simulated
