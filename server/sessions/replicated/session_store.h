// SPDX-License-Identifier: Apache-2.0
// SessionStore: where replicas share their sessions. It holds, for each session, one record that
// changes and chunks of tokens that do not change. It does not read them: session_record.h has the
// format.
//
// A record changes only by compare-and-set on its *claim*, 16 random bytes that each write draws
// anew. So a write that arrives late, or comes from a replica that has lost the session, changes
// nothing, whatever the clocks say. A writer that does not know whether its write arrived reads the
// record: the write arrived if the claim is the writer's own. The lease in a record only tells
// other replicas how long to wait before they take the session over; it protects nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rivulet {

// Immutable bytes under an id that no other chunk ever has: [0-9a-f-], at most 100 characters.
struct StoreChunk {
  std::string id;
  std::string bytes;
};

struct StoreRecord {
  std::string claim;  // 16 bytes
  std::string bytes;
  // How long other replicas wait before they take the session over; 0: it is free. In a write: from
  // now on. In an answer: the time left by the store's clock, and so too much if that clock has
  // gone back. A lease that was written as 0 stays 0 whatever the clock does.
  absl::Duration lease = absl::ZeroDuration();
};

// A set of sessions that is counted and listed. The name may be any bytes.
struct StoreSet {
  std::string name;
  int64_t most = 0;  // limit of members for a new session
};

// Counts the bytes of the records and chunks of an owner's sessions, and kStoreEntryBytes for each,
// until it expires or is dropped, also of sessions that have ended.
struct StoreAccount {
  std::string name;  // any bytes; empty: nothing is counted
  int64_t most = 0;  // limit of bytes for this write; 0: no limit
};
inline constexpr int64_t kStoreEntryBytes = 256;

// One change of one session, which happens as a whole or not at all.
struct StoreWrite {
  std::string session;   // SessionId::ToString
  std::string expected;  // the claim that the record must have; empty: there must be no record
  StoreRecord record;
  // The record, its chunks and its places in the sets last at least this long from now on.
  absl::Duration expiry;
  std::vector<StoreChunk> chunks;        // new ones
  std::vector<std::string> kept_chunks;  // also used by the record: they last as long
  // Chunks that no session uses any more once this is written: they are removed.
  std::vector<std::string> dropped_chunks;
  std::vector<StoreSet> sets;  // the sets that the session is in
  bool leaves_sets = false;    // the session has ended: it leaves them
  StoreAccount account;        // counts the record and the new chunks
};

struct StoreAnswer {
  enum class Kind : uint8_t {
    kDone,           // written; of a Read: found
    kClaimMismatch,  // the record has another claim
    kMissing,        // there is no record
    kFull,           // a new session, and sets[full_set] has no room
    kNoBytes,        // the account would have more bytes than it may
  };
  Kind kind = Kind::kDone;
  StoreRecord found;    // of kClaimMismatch, and of a Read that is kDone
  size_t full_set = 0;  // of kFull
  int64_t members = 0;  // of kFull: members of the set; of kNoBytes: bytes of the account
  // The store's own id, drawn when it was first used. If it differs from an earlier answer, the
  // store was emptied or replaced.
  std::string store_id;
};

// Thread: any. Nothing here waits. Each `done` is called exactly once, on a thread of the store,
// and must not block; calls of one thread are carried out in their order where the store is
// reachable throughout. Errors, of all: UNAVAILABLE (not reachable, no answer in time, or the store
// is being destroyed: a write may or may not have happened, or may happen later),
// RESOURCE_EXHAUSTED (the store is full: a write has not happened; Redis still accepts a write that
// leaves the sets, so that sessions can be closed), DATA_LOSS (the store holds other bytes than
// were written; or a chunk that a write keeps is not there, and the write has not happened).
// encrypted_session_store.h adds an error.
class SessionStore {
 public:
  virtual ~SessionStore() = default;

  using Done = std::function<void(absl::StatusOr<StoreAnswer>)>;
  virtual void Write(StoreWrite write, Done done) = 0;
  // kDone or kMissing.
  virtual void Read(std::string session, Done done) = 0;

  // [ids] their bytes; empty: there is no such chunk.
  using ChunksDone = std::function<void(absl::StatusOr<std::vector<std::string>>)>;
  virtual void ReadChunks(std::vector<std::string> ids, ChunksDone done) = 0;

  // Members of a set that have not expired, in the order of expiry: those that expire later than
  // `after` (milliseconds since 1970 by the store's clock; 0: all), at most `count`, and in
  // addition all that expire at the same time as the last of these.
  struct Member {
    std::string session;
    int64_t expires_ms = 0;
  };
  using MembersDone = std::function<void(absl::StatusOr<std::vector<Member>>)>;
  virtual void List(std::string set, int64_t after_ms, int64_t count, MembersDone done) = 0;

  // Whether there is a connection to the store now; null: the store needs none.
  virtual std::optional<bool> connected() const { return std::nullopt; }
};

}  // namespace rivulet
