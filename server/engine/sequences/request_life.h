// SPDX-License-Identifier: Apache-2.0
// RequestLife: where a request is between its arrival and its end.
//
//   kArrived ─┬─> kWaitsForTurn ─┐              ┌── kFetchesState <──┐
//             └──────────────────┴─> kFindsState ┴─> kWaitsForSlots <─┘
//                                                        │
//                              kWaitsAgain ─────────> kHoldsSlots ──> (kParked or kWaitsAgain)
//                                   └───── kParked <──────┘
//
// It can end from everywhere. Its reader may be slow from kHoldsSlots on: then it is paused, which
// is beside these states, as it can keep its slots. kParked alone implies it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace rivulet {

// Thread: one. A step that is not allowed aborts the process: what follows from it would be wrong
// tokens, or a request that never ends.
class RequestLife {
 public:
  enum class State : uint8_t {
    kArrived,        // not looked at yet
    kWaitsForTurn,   // others have its session
    kFindsState,     // has begun: what it does to its session is known
    kFetchesState,   // the state that it continues from is being read
    kWaitsForSlots,  // for the first time
    kHoldsSlots,
    kParked,      // its slots went to others because nobody reads it; it waits for its reader
    kWaitsAgain,  // its states are in host memory, and it waits for slots
    kEnded,
  };
  static bool Allowed(State from, State to);

  State state() const { return state_; }
  // REQUIRES: Allowed(state(), to); a request that becomes kParked is paused.
  void Go(State to);
  // Its reader has become slow. REQUIRES: it holds slots and is not paused.
  void Pause(absl::Time now);
  // Its reader has read. True: it was parked, and waits for slots from now on. REQUIRES: it is
  // paused.
  bool Resume();

  // Since when; absent: it is not paused.
  std::optional<absl::Time> paused_since() const { return paused_since_; }
  bool paused() const { return paused_since_.has_value(); }
  // It has begun and not ended.
  bool begun() const { return state_ >= State::kFindsState && !ended(); }
  bool waits_for_slots() const {
    return state_ == State::kWaitsForSlots || state_ == State::kWaitsAgain;
  }
  // Its states are in host memory.
  bool parked() const { return state_ == State::kParked || state_ == State::kWaitsAgain; }
  bool ended() const { return state_ == State::kEnded; }

 private:
  State state_ = State::kArrived;
  std::optional<absl::Time> paused_since_;
};

}  // namespace rivulet
