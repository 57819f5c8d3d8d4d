// SPDX-License-Identifier: Apache-2.0
// Loop: the engine's thread for a model. Between two runs it takes in new requests, cancellations
// and deadlines, gives out slots and takes them back. Then it plans a run, submits it and turns the
// records into replies.
//
//   Exchange -> cancel, expire -> admit -> plan -> Submit -> Poll ... -> records -> emitter
//
// It joins classes, each with its own state: who has a session (SessionTable), what a request
// continues from (checkpoints.h), who waits for slots (policy/admission.h), who holds slots
// (slots.h), whose reader is slow (reader_gate.h), the run (current_run.h), which listeners to call
// (emitter.h). These classes do not call the loop: they return the requests to begin or to end.
//
// Invariants: a request is handed to the emitter with its end exactly once, and then the loop holds
// no pointer to it. An error of the backend poisons the loop: all requests end with UNAVAILABLE,
// later ones too.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "server/engine/loop/checkpoints.h"
#include "server/engine/loop/current_run.h"
#include "server/engine/loop/emitter.h"
#include "server/engine/loop/reader_gate.h"
#include "server/engine/loop/request_queue.h"
#include "server/engine/loop/slots.h"
#include "server/engine/meters.h"
#include "server/engine/options.h"
#include "server/engine/policy/admission.h"
#include "server/engine/replicas/replicated_lookups.h"
#include "server/engine/replicas/replicated_sessions.h"
#include "server/engine/replicas/replicated_states.h"
#include "server/engine/sequences/live_request.h"
#include "server/sessions/session_table.h"

namespace rivulet {

// Sessions in a store that replicas share.
struct ReplicaSharing {
  ReplicaSharing(const EngineOptions& options, SessionTable* table, const ReplicaIdentity& identity,
                 const StateStamp& stamp, StateStore* kept, const Clock& clock, RequestQueue* queue)
      : mailbox(std::make_shared<LoopMailbox>([queue] { queue->Wake(); })),
        states(options.state_archive, options.publish, stamp, kept, clock, mailbox, &totals),
        sessions(options.session_store.get(), table, &states, identity, clock, mailbox, &totals),
        lookups(options.session_store.get(), table, identity, clock, mailbox, &totals) {}
  ~ReplicaSharing() { mailbox->Close(); }

  // In a drain: publishes states that are worth it, beginning with the session used last. Returns
  // EngineLoad::unsaved; nullopt: Save was called a moment ago, and requests run (`busy`). `now`:
  // by the steady clock.
  std::optional<int> Save(const SessionTable& table, bool busy, absl::Duration now);

  const std::shared_ptr<LoopMailbox> mailbox;
  ReplicaTotals totals;
  ReplicatedStates states;
  ReplicatedSessions sessions;
  ReplicatedLookups lookups;
  absl::Duration save_again = -absl::InfiniteDuration();  // by the steady clock
};

// Thread: one, which calls Run(), or in a test Turn(). The arguments are borrowed and outlive it.
class Loop {
 public:
  // `identity`: of the sessions in options.session_store. `stamp`: of the files of `disk`, which
  // may be empty. `warm`: states that every tenant's requests may continue from.
  Loop(Backend* backend, const EngineOptions& options, bool with_bos, Clock clock,
       RequestQueue* queue, Emitter* emitter, EngineMeters* meters, const ReplicaIdentity& identity,
       const StateStamp& stamp, DiskTier disk, std::vector<WarmState> warm);

  // Returns after RequestQueue::Stop, when every request has been handed to the emitter with its
  // end.
  void Run();

  // One round of Run: takes in what has arrived, then does at most one run. kIdle: nothing can
  // happen until something arrives, time passes or the disk tier has done something (Run waits
  // then). kStopped: Run would return; do not call it again.
  enum class Outcome : uint8_t { kBusy, kIdle, kStopped };
  Outcome Turn();

 private:
  void TakeArrivals();
  void ExpireDeadlines();
  absl::Status RunWhatCanRun(bool* ran);

  // Takes in a request: it begins when its turn on its session comes, or now if it has none.
  void Enter(LiveRequest* request);
  void CloseSession(Session* session, LiveRequest* closing);
  void Begin(LiveRequest* request);
  // Finds the state from which the request continues, which may have to be read from a file first;
  // then the request waits for slots.
  void FindState(LiveRequest* request);
  void ContinueFrom(LiveRequest* request, const FoundState& found);
  void AddToAdmission(LiveRequest* request, int slots);
  // True: the disk tier has done something.
  bool TakeFetchedStates();
  void TakeReplicated();

  // Replies that were read continue; the parked ones wait for slots again.
  void ResumeReaders();
  // Parks paused replies while requests wait for slots.
  absl::Status ParkReaders();
  // Preempts requests, as Admission says.
  absl::Status PreemptOthers();
  absl::Status AdmitWaiting();
  // Saves the states that sessions keep from freed slots, then makes these slots free.
  absl::Status TakeBackSlots();

  // Plans and does a run. False: nothing to feed.
  absl::StatusOr<bool> RunOnce();
  void HandleRecords();
  void Flush(Sequence* sequence);
  absl::Status AfterRun();

  void EndSequence(Sequence* sequence);
  void FreeSlot(Sequence* sequence);
  void EndRequest(LiveRequest* request, const absl::Status& status);
  void EndAll(const absl::Status& status);
  // Begins the next request that waits for the session.
  void Release(Session* session);

  void UpdateLoad();
  void Publish();

  const EngineOptions options_;
  const Clock clock_;
  RequestQueue* const queue_;
  Emitter* const emitter_;
  EngineMeters* const meters_;
  Slots slots_;
  CurrentRun run_;
  Checkpoints checkpoints_;  // before whatever holds states
  SessionTable sessions_;
  const std::unique_ptr<ReplicaSharing> sharing_;  // null: no store is shared

  absl::Time now_;
  absl::Time next_deadline_ = absl::InfiniteFuture();  // no live request's deadline is earlier
  absl::Status poison_;  // what every request ends with once the backend has failed
  RequestQueue::Arrivals arrivals_;
  EngineLoad load_;  // the loop's part; counters are always up to date, UpdateLoad sets the rest
  std::vector<RequestQueue::Ended> ended_;  // since the queue last took them
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> requests_;  // all that have not ended
  Admission admission_;  // who waits for slots, and the slots of each tenant
  ReaderGate readers_;
  std::vector<RequestId> preparing_;  // LiveRequest::Prepare has more to do
};

}  // namespace rivulet
