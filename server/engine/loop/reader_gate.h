// SPDX-License-Identifier: Apache-2.0
// ReaderGate: replies that are paused because nobody reads them.
//
// A reply whose untaken bytes exceed the limit is paused: it gets no rows until it is read. It
// keeps its slots while no request waits for slots, which costs nothing. Otherwise it is parked: it
// gives up its slots, its states go to host memory, and once it is read it waits for slots again. A
// reply that is not read for too long is ended.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {

// Thread: the loop. Requests are borrowed: Leave comes before their end.
class ReaderGate {
 public:
  // `timeout`: how long a reply may be paused before it is ended. `room`: most bytes for the states
  // of parked replies.
  ReaderGate(absl::Duration timeout, int64_t room) : timeout_(timeout), room_(room) {}

  // Pauses the reply of `request` if its reader has become slow. True: it is paused from now on.
  bool Pause(LiveRequest* request, absl::Time now);
  // The clients of the replies in `read` have taken what waited. Ends the pause of the replies that
  // are no longer slow. Returns the parked replies among them, which wait for slots from now on, in
  // the order of their pauses, the longest first. Looks at no other replies.
  std::vector<LiveRequest*> Resume(std::span<LiveRequest* const> read);
  // When to end `request` because nobody reads it.
  absl::Time EndsAt(const LiveRequest& request) const;
  absl::Duration timeout() const { return timeout_; }
  // The paused replies to park so that `needed` more slots become free, the longest pause first;
  // fewer if `room` is too small for them beside the `parked` bytes. `bytes_of`: the bytes of the
  // states of a reply that holds slots.
  std::vector<LiveRequest*> Yielding(int needed, int64_t parked,
                                     absl::FunctionRef<int64_t(const LiveRequest&)> bytes_of) const;
  bool empty() const { return paused_.empty(); }
  // `request` ends.
  void Leave(LiveRequest* request);

 private:
  const absl::Duration timeout_;
  const int64_t room_;
  std::map<uint64_t, LiveRequest*> paused_;                  // by turn: paused longest first
  absl::flat_hash_map<const LiveRequest*, uint64_t> turns_;  // of paused_
  uint64_t last_turn_ = 0;
};

}  // namespace rivulet
