// SPDX-License-Identifier: Apache-2.0
// LiveRequest: a request while it is in the engine, with its sequences, which hold the slots.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "server/base/token_usage.h"
#include "server/engine/request.h"
#include "server/engine/sequences/cached_prompt.h"
#include "server/engine/sequences/sequence.h"
#include "server/sessions/session.h"

namespace rivulet {

class SessionTable;

// RequestLife: where a request is between its arrival and its end.
//
//   kArrived ─┬─> kWaitsForTurn ─┬─> (kPrepares, kClaims) ─┐              ┌── kFetchesState <──┐
//             └──────────────────┴─────────────────────────┴─> kFindsState ┴─> kWaitsForSlots <─┘
//                                                        │
//                              kWaitsAgain ─────────> kHoldsSlots ──> (kParked or kWaitsAgain)
//                                   └───── kParked <──────┘
//
// It can end from every state. From kHoldsSlots on its reader may be slow: then it is also paused.
// A paused request can keep its slots, so "paused" is not a State; kParked implies it.
//
// Thread: one. A step that is not allowed aborts the process, because it would lead to wrong tokens
// or to a request that never ends.
class RequestLife {
 public:
  enum class State : uint8_t {
    kArrived,        // not handled yet
    kWaitsForTurn,   // another request has its session
    kPrepares,       // its constraint is being compiled
    kClaims,         // it has its session here, and claims it in the store that replicas share
    kFindsState,     // it has begun: its effect on the session is known
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
  // Its reader has become slow: pauses it. REQUIRES: it holds slots and is not paused.
  void Pause(absl::Time now);
  // Its reader has read: ends the pause. True: it was parked and waits for slots from now on.
  // REQUIRES: it is paused.
  bool Resume();

  // Since when it is paused; absent: it is not.
  std::optional<absl::Time> paused_since() const { return paused_since_; }
  bool paused() const { return paused_since_.has_value(); }
  // It has begun and not ended.
  bool begun() const { return state_ >= State::kFindsState && !ended(); }
  bool waits_for_slots() const {
    return state_ == State::kWaitsForSlots || state_ == State::kWaitsAgain;
  }
  // Its states are in host memory.
  bool in_host_memory() const { return state_ == State::kParked || state_ == State::kWaitsAgain; }
  bool ended() const { return state_ == State::kEnded; }

 private:
  State state_ = State::kArrived;
  std::optional<absl::Time> paused_since_;
};

// Where the results of a request go. The emitter's thread makes both calls.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void OnReady() = 0;  // something can be taken
  virtual void OnEnd() = 0;    // the last call

 private:
  friend class Emitter;
  std::atomic<bool> ready_{false};  // a call of OnReady is due, so no other is needed
  bool ended_ = false;              // the loop has called Emitter::PutEnd
};

// Thread: built by the caller of the engine, then the loop's; handed to the emitter with its end.
class LiveRequest : public Outlet {
 public:
  RequestId id = 0;
  RequestKind kind = RequestKind::kGenerate;
  RequestLife life;

  struct Account {
    std::string tenant;
    std::shared_ptr<KeyAccount> key;      // of its API key; null: none
    std::shared_ptr<CallerTokens> usage;  // its caller's tokens; null: not counted
    uint64_t tenant_number = 0;  // from Admission::Add, once the request has waited for slots
    Priority priority = Priority::kNormal;
    int places = 1;          // in the queue, from Submit on
    int64_t num_tokens = 0;  // given tokens
    int64_t prediction = 0;  // tokens of Speculation::prediction
    int64_t queued_tokens() const { return num_tokens + prediction; }
  } account;

  struct Times {
    absl::Time arrival;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Time resumed = absl::InfinitePast();  // when it last began to wait for slots again
    std::optional<absl::Time> admitted, first_token;
    std::optional<absl::Time> delivered;  // when tokens last arrived at its reply
    absl::Time claim;  // when its session was first asked for in the store that replicas share
    absl::Time end;    // when it ended, perhaps before it was handed over
  } times;

  // The session that the request continues, and what it may do to the session.
  std::optional<SessionRef> session_ref;
  Session* session = nullptr;   // set when it is found
  bool closes_session = false;  // it does not wait for its turn
  bool while_draining = false;  // SessionCommand
  // Where replicas share a store.
  struct Claim {
    // The request refuses a session that its client does not know, even without session_ref->hash.
    bool knows_session = false;
    // Of a Generate on a session at a known position: only a repetition of it has the same value.
    std::optional<uint64_t> identity;
    std::optional<Durability> durability;  // set with its end
  } claim;

  int num_slots = 1;       // 0: it needs none and is done when its turn comes
  int open_sequences = 0;  // sequences that have not ended
  std::vector<std::unique_ptr<Sequence>> sequences;  // [num_slots] from admission on

  std::optional<CachedPrompt> cached;  // absent: it does not use the prefix cache
  bool looks_again = false;            // for a better state there, when it gets its slots
  Checkpoint start;                    // what it continues from, once that is known
  // The segments of `start`, until the sequences take them.
  std::vector<StatePtr> kept_segments;
  KeepPlan keep;  // which of its states are kept on the way

  absl::Status status;  // how it ended; set before the end is handed over
  Usage usage;          // likewise

  // Called when its turn has come, and again while it is nullopt: then something must be prepared
  // first, without a slot. An error ends the request and has changed nothing.
  virtual std::optional<absl::Status> Prepare() { return absl::OkStatus(); }
  // Its turn has come, so the content of its session is known. May set num_slots to 0 if nothing
  // has to be fed. An error ends the request and has changed nothing.
  virtual absl::Status Begin(SessionTable* /*table*/, absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // After Begin: the kept state from which the least is left to feed; none: the empty state.
  virtual KeptCheckpoint BestState(PrefixCache* /*cache*/) { return {}; }
  // Starts from `state`, which BestState returned and which is in memory now, so the tokens to feed
  // are known. May set num_slots to 0. An error ends the request. Called again for a request that
  // looks_again. NOLINTNEXTLINE(performance-unnecessary-value-param): those that need it keep it
  virtual absl::Status StartFrom(Checkpoint /*state*/, SessionTable* /*table*/,
                                 absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // The tokens whose states it keeps: its prompt, or all of its session.
  virtual std::span<const int32_t> sequence_tokens() const { return {}; }
  // The kept state that has seen the most sequence_tokens(), at most `most` with the implied bos.
  KeptCheckpoint DeepestState(PrefixCache* cache, int64_t most);
  // Keeps `state` as `keep` asked for. It has seen the first `fed` of sequence_tokens() with the
  // implied bos.
  void KeepState(int64_t fed, StatePtr state, PrefixCache* cache);
  // Fills `sequences`.
  virtual void CreateSequences() = 0;
  // The request ends with this status after a successful Begin; it still has the session.
  virtual void Settle(const absl::Status& /*end*/) {}
  // Whether its reader is slow: then it gets no rows until the reader has taken what waits.
  virtual bool reader_slow() { return false; }
  // Sets `wake`, which any thread calls when a slow reader has taken what waited (Reply::SetWake).
  // Called before anything arrives at its reply.
  virtual void SetWake(std::function<void()>) {}  // NOLINT(performance-unnecessary-value-param)
  // The question of the request to a shared store; null: none.
  virtual const SessionLookup* lookup() const { return nullptr; }
  // Sequence::keeps_slot of one.
  bool keeps_slots() const;
  // Adds to the error that ends the request the place where a client can continue.
  virtual void DescribeProgress(ErrorDetail* /*detail*/) const {}
};

}  // namespace rivulet
