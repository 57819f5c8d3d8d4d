// SPDX-License-Identifier: Apache-2.0
// ReplicatedSessions: the sessions of an engine in a store that replicas share (session_store.h).
//
//   Claim ──> (Read ─ lease of another ─ ReadChunks) ──> Write with a lease ──> kClaimed
//   while it runs: Write every 1,024 tokens, and to renew the lease
//   End ──> Write without a lease ──> kEnded, durable or (after 200 ms) not
//
// The tokens of a session determine everything else, and the store has the tokens. A copy on this
// replica is used as it is only if no other replica has written the record since: then the claim in
// the store is the copy's claim. Else the copy becomes what the record says: the tokens that both
// have stay, with their states. A request begins only with the claim; if another replica takes the
// claim meanwhile, the next write finds that out and the request ends (SESSION_MOVED).
//
// Where a failover made the store lose writes, the copy's tokens are written again if they begin
// with the tokens in the store. A store that was emptied cannot tell whether another replica had
// more of the session, or whether the session was closed. So the copy is written there only while
// this replica's lease has not ended, or if the client says what the session must be
// (SessionRef::hash) and the copy matches; any other request is NOT_FOUND. Where the store cannot
// be reached, a request whose hash matches runs on a copy that was up to date when it was last
// used; any other request is refused (SESSION_STORE).
//
// Thread: the loop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/clock.h"
#include "server/engine/load.h"
#include "server/engine/replicas/loop_mailbox.h"
#include "server/engine/replicas/replicated_records.h"
#include "server/engine/replicas/replicated_states.h"
#include "server/engine/sequences/live_request.h"
#include "server/sessions/replicated/session_record.h"
#include "server/sessions/replicated/session_store.h"
#include "server/sessions/session_table.h"

namespace rivulet {

// A request that has ended, and waits for the writes of the sessions that it changed or opened.
// ReplicatedSessions owns it, because the request is answered even if its session is gone.
struct HeldEnd {
  std::unique_ptr<LiveRequest> request;
  Session* session = nullptr;     // of the request, until kEnded is handled
  int writes = 0;                 // writes whose outcome is not known yet
  absl::Duration until;           // steady clock; then it ends, durable or not
  std::vector<SessionId> opened;  // by the request: all stay open, or none
  std::string other_numerics_id;  // Durability
};

// CopyLife: how a session here relates to its record in the store.
//
//   kUnread ─┬─> kNew ───────┐
//            └─> kTakenOver ─┴─> kOwn <──> kClaimed
//
// Every state can become kUnread: another replica has written the record, or the session is closed.
//
// Thread: the loop. A step that is not allowed aborts the process: after it two replicas could
// write one session.
class CopyLife {
 public:
  enum class State : uint8_t {
    kUnread,     // the record has to be read before the session can be used here
    kNew,        // the session was opened here, and its record must not exist yet
    kTakenOver,  // it became what the record says; its claim is not answered yet
    kOwn,        // it is what the record says, or has grown since
    kClaimed,    // as kOwn, and a request runs on it with the lease
  };
  static bool Allowed(State from, State to);

  bool Is(State state) const { return state_ == state; }
  // REQUIRES: the step from the present state is Allowed.
  void Go(State to);
  // The session may be used and written here.
  bool known() const { return state_ != State::kUnread; }
  bool claimed() const { return state_ == State::kClaimed; }
  // None of its writes has been answered yet: the store has nothing from this replica.
  bool unwritten() const { return state_ == State::kNew || state_ == State::kTakenOver; }

 private:
  State state_ = State::kUnread;
};

// What is known about the session's record, and the call to the store that is under way.
struct ReplicatedCopy {
  CopyLife life;
  // A record that the store has or may get.
  struct Version {
    SessionRecord record;
    std::string claim;          // empty: there is no record yet
    int64_t prefix_tokens = 0;  // tokens of record.chunks that still begin the session
  };
  Version stored;        // the last version that the store is known to have had
  std::string store_id;  // of the store that had `stored`
  // SessionRecord::states for the session as it is here.
  std::vector<int64_t> published;
  int64_t publishing = 0;  // fed tokens of the last state given to the archive
  // Until the next request has ended: the numerics id of the session when it was taken over, if it
  // is not ours.
  std::string other_numerics_id;

  enum class Call : uint8_t { kNone, kRead, kChunks, kWrite };
  Call call = Call::kNone;   // that is under way
  uint64_t call_number = 0;  // number of the last call
  Version found;             // during kChunks: the version to take over
  struct SentWrite {
    Version version;
    bool lease = false;
    bool has_end = false;  // it includes the write that `owes` waits for
    absl::Duration at;     // by the steady clock
  };
  SentWrite sent;  // the write of kWrite
  // Claims of writes that got no answer: the store may have them.
  std::vector<std::string> unconfirmed_claims;
  std::string missed_claim;  // claim of the last record whose chunks were missing
  // By the steady clock: the store keeps the lease of the last write at least until then.
  absl::Duration leased_until = -absl::InfiniteDuration();

  LiveRequest* claiming = nullptr;  // the request that waits for the claim
  bool vouched = false;             // its client gave the session's hash, and the hash matched
  bool wants_write = false;         // it has changed, or must renew or end its lease
  uint64_t owes = 0;                // number of the end that waits for its write; 0: none
  bool awaits_end_event = false;    // the kEnded of its last request is not handled yet
  absl::Status lost;                // why the copy is no longer known()
  absl::Duration due = absl::InfiniteDuration();  // by the steady clock
};

// The claim of another replica's lease, and when it was first seen here, by the steady clock. By
// session.
struct SeenLease {
  std::string claim;
  absl::Duration since;
};
using SeenLeases = absl::btree_map<SessionId, SeenLease>;

// The sessions here with changes that the store does not have.
int CountUnwritten(const SessionTable& table);

struct ReplicationOptions {
  absl::Duration lease = absl::Milliseconds(1500);
  absl::Duration renewal = absl::Milliseconds(500);  // of the lease, after the last write
  // Between two looks at a lease of another replica; between a failed write and the next write.
  absl::Duration look = absl::Milliseconds(100), retry = absl::Milliseconds(500);
  absl::Duration end_wait = absl::Milliseconds(200);  // an end waits for its write
  int64_t tokens_a_write = 1024;                      // while a request runs
};

class ReplicatedSessions {
 public:
  // Borrowed arguments outlive it. The store's threads post to `mailbox`.
  ReplicatedSessions(SessionStore* store, SessionTable* table, ReplicatedStates* states,
                     ReplicaIdentity identity, Clock clock, std::shared_ptr<LoopMailbox> mailbox,
                     ReplicaTotals* totals);

  // What the loop has to do. Requests and sessions are named by their ids: they may be gone.
  struct Event {
    enum class Kind : uint8_t {
      kClaimed,    // the request has its session, or ends with `status`
      kLost,       // the request, which runs, ends with `status`: its session was taken or closed
      kEnded,      // `end` can be handed over; its session is free
      kForgotten,  // nothing uses the session, which is no longer here
    };
    Kind kind;
    RequestId request = 0;
    SessionId session = {};
    absl::Status status = absl::OkStatus();
    std::unique_ptr<HeldEnd> end = nullptr;
  };

  // Forgets idle sessions, which are in the store, until `more` sessions may be opened here.
  void EvictFor(int more);
  // It is the request's turn on its session. kClaimed follows.
  void Claim(LiveRequest* request);
  // `request` ends before it was claimed.
  void Leave(const LiveRequest& request);
  // The session of a running request has grown.
  void NoteTokens(Session* session);
  // `request` has ended. `session`: the session that it had and may have changed, or null.
  // `opened`: the sessions that it opened. kEnded follows.
  void End(std::unique_ptr<LiveRequest> request, Session* session,
           const std::vector<Session*>& opened);
  // A state was published; the session's record is to name it.
  void NotePublished(const ReplicatedStates::Published& state);
  // The session is not free until the loop has handled the kEnded of its last request.
  static bool Ends(const Session& session) {
    return session.replicated != nullptr && session.replicated->awaits_end_event;
  }

  // Runs the mailbox and does what is due. Returns the events since the last call, in order.
  std::vector<Event> Collect();
  // The time until Collect has work, unless the mailbox gets some before; not positive: now.
  absl::Duration DueIn() const;
  // All waiting ends, as not durable: the engine stops.
  std::vector<std::unique_ptr<HeldEnd>> Abandon();

 private:
  using Answer = absl::StatusOr<StoreAnswer>;
  using Chunks = absl::StatusOr<std::vector<std::string>>;

  // The end number `end` waits for a write of the session, which stays here until then.
  void Owe(Session* session, uint64_t end);
  // Does what the session needs next, unless a call is under way.
  void Advance(Session* session);
  void ReadChunks(Session* session);
  void Write(Session* session, bool lease);
  // A callback for the session's next call: `on` takes its result, unless the session was
  // forgotten.
  template <typename Result>
  std::function<void(Result)> Call(Session* session, ReplicatedCopy::Call call,
                                   void (ReplicatedSessions::*on)(Session*, const Result&)) {
    session->replicated->call = call;
    const uint64_t number = ++session->replicated->call_number;
    return Posting<Result>(mailbox_, [this, on, number, id = session->id](const Result& result) {
      totals_->CountCall(result.status());
      Session* const called = table_->Get(id);
      ReplicatedCopy* const copy = called == nullptr ? nullptr : called->replicated.get();
      if (copy == nullptr || copy->call_number != number) return;  // of a forgotten session
      copy->call = ReplicatedCopy::Call::kNone;
      (this->*on)(called, result);
    });
  }

  void OnWrite(Session* session, const Answer& answer);
  void OnRead(Session* session, const Answer& answer);
  void OnChunks(Session* session, const Chunks& chunks);
  void OnWritten(Session* session);
  // The tenant may not store more bytes.
  void OnNoBytes(Session* session, const absl::Status& status);
  // The record has a claim that was not expected.
  void OnFound(Session* session, const StoreRecord& found);
  void OnMissing(Session* session, const std::string& store_id);
  void OnUnavailable(Session* session, const absl::Status& status);
  // Closes a session that no client has been told of.
  void Discard(Session* session);
  // This replica no longer has the session.
  void Lose(Session* session, const absl::Status& status);
  // Decides the end that waits for the session, if any: the store has its tokens, or has not.
  void DecideEnd(Session* session, bool durable, const absl::Status& status);
  void Claimed(Session* session, const absl::Status& status);

  void SetDue(Session* session, absl::Duration due);  // by the steady clock
  void TakeDue(Session* session);

  SessionStore* const store_;
  SessionTable* const table_;
  ReplicatedStates* const states_;
  const ReplicaIdentity identity_;
  const Clock clock_;
  const ReplicationOptions options_;
  const std::shared_ptr<LoopMailbox> mailbox_;
  ReplicaTotals* const totals_;
  std::deque<Event> events_;
  absl::btree_map<uint64_t, std::unique_ptr<HeldEnd>> ends_;  // by number
  uint64_t last_end_ = 0;
  absl::btree_set<std::pair<absl::Duration, SessionId>> due_;
  SeenLeases leases_;  // kept while their sessions are forgotten: clients ask again
};

}  // namespace rivulet
