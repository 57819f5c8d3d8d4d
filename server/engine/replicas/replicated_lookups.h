// SPDX-License-Identifier: Apache-2.0
// ReplicatedLookups: the calls on sessions that do not wait for their turn, where replicas share a
// store: CloseSession, GetSession, ListSessions. They go to the store.
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
  // Borrowed arguments outlive it. The store's threads post to `mailbox`. Calls that fail are
  // counted in `totals`.
  ReplicatedLookups(SessionStore* store, const SessionTable* table, ReplicaIdentity identity,
                    Clock clock, std::shared_ptr<LoopMailbox> mailbox, ReplicaTotals* totals);

  // Writes a tombstone, whichever replica has the session; the next writer finds the session lost.
  void Close(LiveRequest* request);
  // Carries out LiveRequest::lookup and gives it the answer.
  void Look(LiveRequest* request);
  // `request` ends before it was answered.
  void Leave(const LiveRequest& request) { open_.erase(request.id); }

  // Requests answered since the last call.
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
    std::vector<std::string> claims;  // of the sent tombstones
    std::vector<SessionId> sessions;  // it reads their records
    size_t begun = 0, ended = 0;      // numbers of these reads
    std::vector<std::optional<SessionInfo>> found;
    uint64_t next = 0;
  };
  // Calls `take` with the request's entry, if the request is still open.
  template <typename Result>
  std::function<void(Result)> For(RequestId id, std::function<void(Open*, const Result&)> take) {
    return Posting<Result>(mailbox_, [this, id, take = std::move(take)](const Result& result) {
      totals_->CountCall(result.status());
      const auto open = open_.find(id);
      if (open != open_.end()) take(&open->second, result);
    });
  }

  void OnCloseAnswer(Open* open, const Answer& answer);
  // Reads the records of `sessions`, when the request's turn comes.
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
  std::deque<RequestId> reading_;  // with reads to begin, or ended
  size_t reads_ = 0;               // reads of records under way
  std::vector<Answered> answered_;
};

}  // namespace rivulet
