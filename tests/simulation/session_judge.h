// SPDX-License-Identifier: Apache-2.0
// SessionJudge: judges the results of session calls: open, close, fork, rewind, list, snapshot,
// restore.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/session_calls.h"
#include "tests/simulation/status_judge.h"

namespace rivulet::simulated {

// A snapshot that a client has.
struct Kept {
  std::string bytes;
  std::string tenant;
  uint64_t seed = 0;
  SessionState state;
};

// Thread: one.
class SessionJudge {
 public:
  // All are borrowed.
  SessionJudge(const World& world, StatusJudge* status, Requests* requests, Clients* clients,
               Journal* journal)
      : world_(world), status_(status), requests_(requests), clients_(clients), journal_(journal) {}

  // `asked` has ended, and is removed.
  void Open(Asked* asked, const OpenSpec& spec, const absl::StatusOr<SessionInfo>& seen);
  void Close(Asked* asked, const absl::Status& status);
  void Fork(Asked* asked, const ForkSpec& spec,
            const absl::StatusOr<std::vector<SessionInfo>>& seen);
  void Rewind(Asked* asked, const SessionRef& to, const absl::StatusOr<SessionInfo>& seen);
  // `beyond`: the page after the last.
  void List(Asked* asked, bool beyond, const absl::StatusOr<SessionPage>& seen);
  void TakeSnapshot(Asked* asked, const SessionRef& ref, const absl::StatusOr<SessionImage>& seen);
  // `tenant` and `seed`: of the snapshot.
  void Restore(Asked* asked, const std::string& tenant, uint64_t seed,
               const absl::StatusOr<SessionInfo>& seen);

  const std::vector<Kept>& snapshots() const { return snapshots_; }  // the last four

 private:
  void JudgeList(const Asked& asked, const std::vector<SessionInfo>& seen);
  void Keep(const Client& client, const SessionImage& image);

  const World& world_;
  const Truth truth_{world_};
  StatusJudge* const status_;
  Requests* const requests_;
  Clients* const clients_;
  Journal* const journal_;
  std::vector<Kept> snapshots_;
};

}  // namespace rivulet::simulated
