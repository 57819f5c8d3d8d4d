// SPDX-License-Identifier: Apache-2.0
// ReaderGate: replies that are paused because nobody reads them.
//
// A reply whose untaken bytes exceed the limit is paused: it has no rows until it was read. It
// keeps its slots while nobody wants them, which costs nothing; to requests that wait it gives them
// up, its states go to host memory, and once it is read it waits for slots again. One that nobody
// reads for too long is ended.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/engine/sequences/request.h"

namespace rivulet {

// Thread: the loop. Requests are borrowed: Leave comes before their end.
class ReaderGate {
 public:
  // `timeout`: a reply that is paused for so long is to be ended. `room`: samples whose states may
  // be in host memory because nobody reads them.
  ReaderGate(absl::Duration timeout, int64_t room) : timeout_(timeout), room_(room) {}

  // Pauses the reply of `request` if its reader has become slow. True: it is paused from now on.
  bool Pause(Request* request, absl::Time now);
  // Clients have taken what waited of the replies of `read`. Lets those go on that were paused and
  // are slow no more. Returns those of them that have no slots and wait for some from now on, the
  // one paused longest first. The others are not looked at.
  std::vector<Request*> Resume(std::span<Request* const> read);
  // When `request` is to be ended because nobody reads it.
  absl::Time EndsAt(const Request& request) const;
  absl::Duration timeout() const { return timeout_; }
  // Paused replies that should give up their slots so that `needed` more become free, the one
  // paused longest first: as many as that takes and as have room beside the `parked` samples whose
  // states are in host memory already.
  std::vector<Request*> Yielding(int needed, int parked) const;
  bool empty() const { return paused_.empty(); }
  // `request` ends.
  void Leave(Request* request);

 private:
  const absl::Duration timeout_;
  const int64_t room_;
  std::map<uint64_t, Request*> paused_;                  // by turn: paused longest first
  absl::flat_hash_map<const Request*, uint64_t> turns_;  // of paused_
  uint64_t last_turn_ = 0;
};

}  // namespace rivulet
