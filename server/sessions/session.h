// SPDX-License-Identifier: Apache-2.0
// Session: a client's conversation with a model that outlives its requests.
//
// A session is its token *history*: the tokens given and generated so far. The recurrent state
// after any number of tokens follows from the history, so states are kept as *checkpoints* only to
// save work: a request continues from the latest checkpoint that fits and feeds the rest of the
// history. Rewinding drops tokens; forking copies the history and shares the checkpoints, which
// never change. The store that keeps the states (state_store.h) may forget any of them.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/key_account.h"
#include "server/sessions/sequence_hash.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

class LiveRequest;
struct ReplicatedCopy;

// 128 random bits, never reused; never all zero. As text: 32 lower-case hexadecimal digits.
struct SessionId {
  uint64_t high = 0, low = 0;

  static SessionId Random();  // from the system's generator
  static std::optional<SessionId> Parse(absl::string_view text);
  std::string ToString() const;
  auto operator<=>(const SessionId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const SessionId& id) {
    return H::combine(std::move(h), id.high, id.low);
  }
};

// The tokens of a session, in order; the implied bos is not among them. Thread: one at a time.
class TokenHistory {
 public:
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  int32_t token(int64_t i) const { return tokens_[static_cast<size_t>(i)]; }
  bool generated(int64_t i) const { return generated_[static_cast<size_t>(i)]; }
  std::span<const int32_t> tokens() const { return tokens_; }
  // The hash of all tokens (sequence_hash.h). A client that computes it over the tokens that it saw
  // knows whether it saw them all.
  uint64_t hash() const { return hash_; }
  // The hash of the first `position` tokens, 0 to size().
  uint64_t HashAt(int64_t position) const;

  void Append(int32_t token, bool generated);
  // Drops the tokens after the first `size`.
  void Truncate(int64_t size);
  // How many tokens, from the first on, have stayed the same since the last call.
  int64_t TakeUnchanged() { return std::exchange(unchanged_, size()); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<bool> generated_;
  uint64_t hash_ = kEmptySequenceHash;
  int64_t unchanged_ = 0;
};

// The state after the first `fed` tokens, the implied bos counted among them, in memory. `state`
// null: nothing has been fed. Thread: any.
struct Checkpoint {
  int64_t fed = 0;
  ViewPtr state;
};

// A checkpoint whose state may be in memory or not. Thread: the thread of its store.
struct KeptCheckpoint {
  int64_t fed = 0;
  StatePtr state;
};

// What a client may know of a session.
struct SessionInfo {
  SessionId id;
  int64_t position = 0;                  // tokens given and generated
  uint64_t hash = 0;                     // TokenHistory::hash
  uint64_t seed = 0;                     // for a Generate without a seed
  std::map<std::string, int64_t> marks;  // name -> position
  absl::Duration idle_timeout;
  absl::Duration idle;  // since the last request ended
  // Bytes of its checkpoints: in memory, and only in files. Checkpoints that forks share count for
  // each fork; a segment that checkpoints of this session share counts once.
  int64_t state_bytes = 0, state_disk_bytes = 0;
  bool busy = false;
};

// Thread: the loop.
class Session {
 public:
  // `checkpoint_tokens`: see Keep.
  Session(SessionId session_id, std::string owner, bool with_bos, int64_t checkpoint_tokens)
      : id(session_id),
        tenant(std::move(owner)),
        bos_(with_bos ? 1 : 0),
        checkpoint_tokens_(checkpoint_tokens) {}

  const SessionId id;
  const std::string tenant;
  TokenHistory history;
  uint64_t seed = 0;
  absl::Duration idle_timeout = absl::InfiniteDuration();
  absl::Time last_used;
  uint64_t use = 0;                  // number of its last use, which orders the sessions of a table
  LiveRequest* active = nullptr;     // the request that has it now
  std::deque<LiveRequest*> waiters;  // requests that wait for their turn, oldest first
  bool closed = false;               // ends with its active request
  bool pinned = false;               // SessionTable::Pin
  // Set while the history ends with the tokens, given and generated, of a cancelled Generate: where
  // these tokens begin. The client may have seen only some of them, or none.
  std::optional<int64_t> abandoned_from;
  KeyShare key;                                // the key that opened it
  std::shared_ptr<ReplicatedCopy> replicated;  // null: no store is shared

  int64_t position() const { return history.size(); }
  // Tokens to feed for the whole history: the implied bos, where there is one, included.
  int64_t total() const { return bos_ + position(); }
  // The tokens of the history that a state after `fed` tokens, the implied bos counted, has seen.
  int64_t Seen(int64_t fed) const { return std::max<int64_t>(0, fed - bos_); }

  // The latest checkpoint with at most `most` fed tokens; the empty state where none is kept.
  KeptCheckpoint From(int64_t most) const;
  // Keeps a checkpoint of the present history. Earlier checkpoints stay if marks need them, if they
  // are among the last few, or if they are needed so that going back by d tokens feeds at most
  // max(checkpoint_tokens, d / 2) tokens again (more where checkpoints were forgotten or too far
  // apart). Their number grows with the logarithm of the length.
  void Keep(KeptCheckpoint checkpoint);
  // Whether it has a checkpoint after exactly `fed` fed tokens.
  bool Keeps(int64_t fed) const;

  // Drops the tokens after the first `position`, with their marks and checkpoints. REQUIRES:
  // position <= this->position().
  void Rewind(int64_t position);
  void Mark(const std::string& name) { marks_[name] = position(); }
  const std::map<std::string, int64_t>& marks() const { return marks_; }
  // Copies history, marks and checkpoints of `other`.
  void CopyFrom(const Session& other);
  // Takes on these tokens and marks. States after common first tokens stay.
  void BecomeCopyOf(TokenHistory other, std::map<std::string, int64_t> marks);
  // Sets the content of a snapshot. REQUIRES: marks lie within the history.
  void Restore(TokenHistory restored, std::map<std::string, int64_t> marks);

  SessionInfo Info(absl::Time now) const;

 private:
  bool NeededByMark(int64_t fed) const;
  // Drops checkpoints that Keep need not keep.
  void Thin();

  const int64_t bos_;
  const int64_t checkpoint_tokens_;
  std::vector<KeptCheckpoint> checkpoints_;  // by `fed`, ascending; none of 0
  std::map<std::string, int64_t> marks_;
};

}  // namespace rivulet
