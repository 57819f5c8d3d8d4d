// SPDX-License-Identifier: Apache-2.0
// ReplicatedStates: the states of sessions in an archive that replicas share (state_archive.h).
//
// When a request on a session has ended, its last state is published if recomputing it takes longer
// than writing and reading it. The archive gets the segments that it does not have, and the rest of
// the state. The session's record then names the state (SessionRecord::states), and a replica that
// takes the session over continues from there. A state that the archive has lost, or has not as it
// was published, is computed again from the session's tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/clock.h"
#include "server/engine/load.h"
#include "server/engine/options.h"
#include "server/engine/replicas/loop_mailbox.h"
#include "server/sessions/replicated/state_archive.h"
#include "server/sessions/session_table.h"
#include "server/sessions/store/state_file.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

// A record names only this many published states, the last ones.
inline constexpr size_t kMostPublished = 2;

// Thread: the loop.
class ReplicatedStates {
 public:
  // `archive` null: nothing is published, and nothing found. `model`: the stamp of every state of
  // this model, without its owner. Borrowed arguments outlive it. The archive's threads post to
  // `mailbox`.
  ReplicatedStates(std::shared_ptr<StateArchive> archive, const PublishOptions& options,
                   StateStamp model, StateStore* store, Clock clock,
                   std::shared_ptr<LoopMailbox> mailbox, ReplicaTotals* totals);

  // A run fed `fed` prompt tokens in `time`.
  void NoteRun(int64_t fed, absl::Duration time);

  // Publishes the session's latest state, if it is WorthPublishing.
  void Publish(Session* session);
  // Publications that have ended since the last call. The sessions may be gone or have changed.
  struct Published {
    SessionId session;
    absl::StatusOr<int64_t> fed = 0;  // KeptCheckpoint::fed; the error: it is not published
    uint64_t sequence_hash = 0;       // of the tokens that the state has seen
  };
  std::vector<Published> Take() { return std::exchange(published_, {}); }
  // States that are being published; whether the session's state after `fed` tokens fits, too.
  int under_way() const { return under_way_; }
  bool has_room(const Session& session, int64_t fed) const;
  // The publication that ended last has failed.
  bool failing() const { return failing_; }
  // The session's latest state, if it is in memory and worth publishing, whether or not there is
  // room for it; else none.
  KeptCheckpoint WorthPublishing(const Session& session) const;

  // Registers published states, by their numbers of fed tokens, as places where the session can
  // continue. REQUIRES: the session equals its record.
  void Adopt(Session* session, const std::vector<int64_t>& fed);

 private:
  struct Publication;
  void OnPut(Publication* publication, const absl::StatusOr<int64_t>& written);
  // Bytes of the session's state after `fed` tokens that the last published state does not hold.
  int64_t NewBytes(const Session& session, int64_t fed) const;
  // A part of a state in the archive: one of its segments, or the rest of the state. `fed`: tokens
  // fed where the part ends; `values`: number of floats.
  struct Part {
    int64_t fed = 0;
    bool segment = false;
    size_t values = 0;
  };
  // In the order of StateView::part.
  std::vector<Part> PartsOf(int64_t fed) const;
  // Finds parts: of which model and tenant, after which tokens. Thread: any.
  struct Place;
  std::shared_ptr<const Place> PlaceOf(const Session& session, int64_t fed) const;
  PublishedRead ReadOf(const Session& session, int64_t fed);

  const std::shared_ptr<StateArchive> archive_;
  const PublishOptions options_;
  const StateStamp model_;
  StateStore* const store_;
  int64_t under_way_bytes_ = 0;
  const Clock clock_;
  const std::shared_ptr<LoopMailbox> mailbox_;
  ReplicaTotals* const totals_;
  int under_way_ = 0;
  bool failing_ = false;
  std::vector<Published> published_;
  // Weighted sums: recent events count most.
  double fed_ = 0, fed_seconds_ = 0;
  double written_bytes_ = 100e6, written_seconds_ = 1;  // a guess, until something was written
};

}  // namespace rivulet
