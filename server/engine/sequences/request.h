// SPDX-License-Identifier: Apache-2.0
// Request: an RPC while it is in the engine, with the sequences that it holds slots with.
#pragma once

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
#include "server/engine/outlet.h"
#include "server/engine/request.h"
#include "server/engine/sequences/cached_prompt.h"
#include "server/engine/sequences/sequence.h"
#include "server/sessions/session.h"

namespace rivulet {

class SessionTable;

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
//
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

// Thread: built by the caller of the engine, then the loop's; handed to the emitter with its end.
class Request : public Outlet {
 public:
  RequestId id = 0;
  RequestKind kind = RequestKind::kGenerate;
  RequestLife life;

  struct Account {
    std::string tenant;
    std::shared_ptr<KeyAccount> key;  // of its API key; null: none
    uint64_t tenant_number = 0;       // from Admission::Add, once the request has waited for slots
    Priority priority = Priority::kNormal;
    int places = 1;          // in the queue, from Submit on
    int64_t num_tokens = 0;  // given tokens: what it costs to keep
  } account;

  struct Times {
    absl::Time arrival;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Time resumed = absl::InfinitePast();  // when it last began to wait for slots again
    std::optional<absl::Time> admitted, first_token;
    std::optional<absl::Time> delivered;  // when tokens last arrived at its reply
  } times;

  // The session that it continues, and what it may do to it.
  std::optional<SessionRef> session_ref;
  Session* session = nullptr;   // set when it is found
  bool closes_session = false;  // it does not wait for its turn
  bool while_draining = false;  // SessionCall

  int num_slots = 1;       // 0: it is carried out as soon as its turn comes
  int open_sequences = 0;  // sequences that have not ended
  std::vector<std::unique_ptr<Sequence>> sequences;  // [num_slots] from admission on

  std::optional<CachedPrompt> cached;  // absent: it does without the prefix cache
  bool looks_again = false;            // for a better state there, when it gets its slots
  Checkpoint start;                    // what it continues from, once that is known
  KeepPlan keep;                       // which of its states are kept on the way

  absl::Status status;  // how it ended; set before the end is handed over
  Usage usage;          // likewise

  // Its turn has come: what it needs to know of its session is known. May set num_slots to 0
  // where nothing has to be fed. An error ends it, and has changed nothing.
  virtual absl::Status Begin(SessionTable* /*table*/, absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // After Begin: the kept state from which it has the least to feed; none: it begins with nothing.
  virtual KeptCheckpoint BestState(PrefixCache* /*cache*/) { return {}; }
  // Starts from `state`, which BestState named and which is in memory now: what has to be fed
  // is known. May set num_slots to 0. An error ends it. Comes again where it looks_again.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those that need it keep it
  virtual absl::Status StartFrom(Checkpoint /*state*/, SessionTable* /*table*/,
                                 absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // The tokens whose states it keeps: its prompt, or all of its session.
  virtual std::span<const int32_t> sequence_tokens() const { return {}; }
  // The kept state that has seen the most of them, at most `most`, the implied bos counted.
  KeptCheckpoint DeepestState(PrefixCache* cache, int64_t most);
  // `state` has seen the first `fed` of them, the implied bos counted, as `keep` wanted.
  void KeepState(int64_t fed, StatePtr state, PrefixCache* cache);
  // Fills `sequences`.
  virtual void CreateSequences() = 0;
  // It ends so after a Begin that was OK; the session is still its own.
  virtual void Settle(const absl::Status& /*end*/) {}
  // Its reader is slow: no rows until it has taken what waits.
  virtual bool reader_slow() { return false; }
  // `wake` is called, on any thread, when a slow reader has taken what waited (Reply::SetWake).
  // Before anything arrives at its reply.
  virtual void SetWake(std::function<void()>) {}  // NOLINT(performance-unnecessary-value-param)
  // Adds to an error that ends it where a client can go on.
  virtual void DescribeProgress(ErrorDetail* /*detail*/) const {}
};

}  // namespace rivulet
