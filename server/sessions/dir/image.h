// SPDX-License-Identifier: Apache-2.0
// The entries of the log of a store in a directory (log.h), and the image of the store that they
// add up to. Times are milliseconds since 1970.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/sessions/replicated/session_store.h"

namespace rivulet::dir_store {

// Chunk `id` lies in a file whose name ends with `nonce`.
struct ChunkFile {
  std::string id;
  uint64_t nonce = 0;
  bool operator==(const ChunkFile&) const = default;
};

// One entry: a write of a session, or, where `session` is empty, a sweep.
struct Entry {
  uint64_t floor = 0;  // segments before it are no part of the log
  std::string session;
  std::string file;  // in records/
  std::string claim;
  int64_t leased_until = 0, expires = 0;
  std::vector<std::string> sets;
  std::vector<ChunkFile> chunks;  // all that the record uses
  std::string bytes;              // of the record
  // What a sweep forgets, because it has expired. In a write these lists, which servers of the
  // previous version ignore, have another meaning: swept_sessions has the name of its account, if
  // it has one; swept_chunks are the chunks that it drops; unused_chunks are its chunks that count
  // for the account, with their bytes in `expires`. In a sweep `chunks` has, for each of
  // unused_chunks, the account that it counts for, with its bytes in the nonce.
  std::vector<std::string> swept_sessions, swept_chunks;
  // Chunks that no record uses any more and that have not expired. A sweep that raises the floor
  // names them again, since the entries that named them go.
  struct Unused {
    ChunkFile file;
    int64_t expires = 0;
  };
  std::vector<Unused> unused_chunks;
};
std::string EncodeEntry(const Entry& entry);
// Errors: DATA_LOSS.
absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes);

std::string EncodeChunk(const StoreChunk& chunk);
// The bytes of chunk `id`. Errors: DATA_LOSS.
absl::StatusOr<std::string> DecodeChunk(absl::string_view id, absl::string_view bytes);

// Thread: one at a time.
class Image {
 public:
  struct Use {
    std::string account;  // the bytes count for it; empty: none
    int64_t bytes = 0;
    int64_t expires = 0;  // from then on the bytes do not count
  };
  struct Record {
    uint64_t number = 0;  // of its entry
    std::string file, claim;
    int64_t leased_until = 0, expires = 0;
    std::vector<std::string> sets;
    Use use;
    bool damaged = false;  // its entry cannot be read: only `number` and `file` are known
  };
  struct Chunk {
    uint64_t number = 0;  // of the last entry that names it
    uint64_t nonce = 0;
    int64_t expires = 0;
    Use use;
  };

  void Apply(uint64_t number, const Entry& entry);
  // The newest entry of `session` cannot be read.
  void ApplyDamaged(const std::string& session, Record record);

  // The outcome of a write at time `now`: a kind, and the rest as in StoreAnswer. Errors:
  // DATA_LOSS.
  struct Verdict {
    StoreAnswer::Kind kind = StoreAnswer::Kind::kDone;
    size_t full_set = 0;
    int64_t members = 0;
  };
  absl::StatusOr<Verdict> Judge(const StoreWrite& write, int64_t now) const;

  // nullptr: there is none, or it has expired.
  const Record* FindRecord(const std::string& session, int64_t now) const;
  const Chunk* FindChunk(const std::string& id, int64_t now) const;
  // As SessionStore::List.
  std::vector<SessionStore::Member> List(const std::string& set, int64_t after, int64_t count,
                                         int64_t now) const;

  uint64_t floor() const { return floor_; }
  uint64_t sweeps() const { return sweeps_; }  // applied so far
  const auto& records() const { return records_; }
  const auto& chunks() const { return chunks_; }

 private:
  using Members = std::set<std::pair<int64_t, std::string>>;  // when it expires, session

  void Forget(const std::string& session);
  void Name(uint64_t number, const ChunkFile& file, int64_t expires);
  void Drop(const std::string& chunk);
  // Replaces *use by `counted`, and counts the bytes.
  void Count(Use* use, Use counted);
  int64_t CountMembers(const std::string& set, int64_t now) const;
  int64_t BytesOf(const std::string& account, int64_t now) const;
  // The account's bytes if they keep the write from being done; 0: they do not.
  int64_t NoBytesFor(const StoreWrite& write, const Record* record, int64_t now) const;

  uint64_t floor_ = 0, sweeps_ = 0;
  absl::flat_hash_map<std::string, Record> records_;
  absl::flat_hash_map<std::string, Chunk> chunks_;
  std::map<std::string, Members> sets_;
  struct Account {
    int64_t bytes = 0;                    // including expired and not yet swept
    std::map<int64_t, int64_t> expiring;  // bytes by time of expiry
  };
  absl::flat_hash_map<std::string, Account> accounts_;
};

}  // namespace rivulet::dir_store
