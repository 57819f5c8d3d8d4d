// SPDX-License-Identifier: Apache-2.0
// ReplicatedLookups: the calls on sessions that do not wait for their turn, where replicas share a
// store: CloseSession, GetSession, ListSessions. They go to the store, wherever the session runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/load.h"
#include "server/engine/replicas/loop_mailbox.h"
#include "server/engine/replicas/replicated_sessions.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {

// Thread: the loop.
class ReplicatedLookups {
 public:
  // What is borrowed outlives it. The store's threads post to `mailbox`. Calls that fail are
  // counted in `totals`.
  ReplicatedLookups(SessionStore* store, const SessionTable* table, ReplicaIdentity identity,
                    Clock clock, std::shared_ptr<LoopMailbox> mailbox, ReplicaTotals* totals);

  // Leaves a tombstone, whoever has the session; its next writer finds that it has lost it.
  void Close(LiveRequest* request);
  // LiveRequest::lookup says what it asks for, and gets it.
  void Look(LiveRequest* request);
  // `request` ends before it was answered.
  void Leave(const LiveRequest& request) { open_.erase(request.id); }

  // Requests that are answered, since the last call.
  struct Answered {
    RequestId request = 0;
    absl::Status status;
  };
  std::vector<Answered> Take() { return std::exchange(answered_, {}); }
  bool empty() const { return answered_.empty(); }

 private:
  using Answer = absl::StatusOr<StoreAnswer>;
  struct Open {
    LiveRequest* request = nullptr;
    std::vector<std::string> claims;  // of tombstones that were sent
    std::vector<SessionId> sessions;  // whose records it reads
    size_t begun = 0, ended = 0;      // of these reads
    std::vector<std::optional<SessionInfo>> found;
    uint64_t next = 0;
  };
  // Calls `take` with the request's entry, if it is still open.
  template <typename Result>
  std::function<void(Result)> For(RequestId id, std::function<void(Open*, const Result&)> take) {
    return Posting<Result>(mailbox_, [this, id, take = std::move(take)](const Result& result) {
      totals_->CountCall(result.status());
      const auto open = open_.find(id);
      if (open != open_.end()) take(&open->second, result);
    });
  }

  void OnCloseAnswer(Open* open, const Answer& answer);
  // Reads what `sessions` names, in its turn.
  void Read(Open* open, std::vector<SessionId> sessions);
  void BeginReads();
  void OnRecord(Open* open, size_t index, const Answer& answer);
  void End(const Open& open, absl::Status status);
  SessionInfo InfoOf(const SessionId& id, const SessionRecord& record, bool busy) const;

  SessionStore* const store_;
  const SessionTable* const table_;
  const ReplicaIdentity identity_;
  const Clock clock_;
  const std::shared_ptr<LoopMailbox> mailbox_;
  ReplicaTotals* const totals_;
  absl::flat_hash_map<RequestId, Open> open_;
  std::deque<RequestId> reading_;  // that have reads to begin, or have ended
  size_t reads_ = 0;               // of records that are under way
  std::vector<Answered> answered_;
};

}  // namespace rivulet
