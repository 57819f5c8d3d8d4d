// SPDX-License-Identifier: Apache-2.0
// SessionRecord: what replicas know of a shared session, and its tokens in chunks. Both are bytes
// in a SessionStore.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/sessions/replicated/session_store.h"
#include "server/sessions/session.h"

namespace rivulet {

// The tokens of a session are the tokens of its chunks, one after another. Forks share chunks;
// after a rewind the session uses less of its last chunk.
struct ChunkUse {
  std::string id;
  int64_t tokens = 0;  // used tokens, from the chunk's first on
  bool operator==(const ChunkUse&) const = default;
};

struct SessionRecord {
  std::string model_name, weights_sha256, config_sha256;  // hashes: lower-case hex
  std::string numerics_id;                                // of the last writer
  std::string tenant;
  std::string key;      // name of the API key that it was opened with; "": none
  uint64_t epoch = 0;   // grows with each write. It orders records; the claim protects them
  bool closed = false;  // a tombstone: the rest has no meaning
  int64_t position = 0;
  uint64_t sequence_hash = 0;  // TokenHistory::hash
  uint64_t seed = 0;
  std::map<std::string, int64_t> marks;
  absl::Duration idle_timeout;
  std::optional<int64_t> abandoned_from;  // Session::abandoned_from
  // While there is a lease: ReplyFingerprint of the request that runs, if it is a Generate. A
  // repetition of this request need not wait for the lease.
  std::optional<uint64_t> request;
  absl::Time written = absl::UnixEpoch();  // by the writer's clock; for people to read
  std::vector<ChunkUse> chunks;
  // No other session uses its chunks: it was never forked and is no fork. A server that does not
  // know this field writes false, and false stays, because that server may have forked the session.
  bool owns_chunks = false;
  // Its published states (state_archive.h), by their numbers of fed tokens, the implied bos
  // counted, ascending.
  std::vector<int64_t> states;
};

// The uses that cover the first `tokens` tokens. REQUIRES: there are `tokens` tokens.
std::vector<ChunkUse> FirstTokens(const std::vector<ChunkUse>& uses, int64_t tokens);
// The number of first tokens that both share, as far as the ids of chunks tell.
int64_t CommonTokens(const std::vector<ChunkUse>& a, const std::vector<ChunkUse>& b);
// Adds uses until all of `history` is covered; the new chunks go to `written`. `uses` cover its
// first tokens. Small chunks at the end of `uses` are replaced by a larger chunk, so that n tokens
// lie in about log(n) + n / 65,536 chunks and each token is written about log(n) times.
void CoverTokens(const TokenHistory& history, absl::string_view tenant, std::vector<ChunkUse>* uses,
                 std::vector<StoreChunk>* written);

std::string EncodeRecord(const SessionRecord& record);
// Errors: DATA_LOSS (SESSION_RECORD_DAMAGED), FAILED_PRECONDITION (SESSION_RECORD_VERSION;
// SESSION_RECORD_KEY: the bytes are encrypted, and this server has no keys).
absl::StatusOr<SessionRecord> DecodeRecord(absl::string_view bytes);

// Tokens [begin, end) of `history` as a chunk's bytes. REQUIRES: they exist.
std::string EncodeTokens(const TokenHistory& history, int64_t begin, int64_t end,
                         absl::string_view tenant);
// Appends the first `use.tokens` tokens of a chunk to `history`. Errors: DATA_LOSS
// (SESSION_RECORD_DAMAGED): the chunk is missing, has fewer tokens, or is of another tenant or
// position; and the errors of DecodeRecord.
absl::Status AppendTokens(const ChunkUse& use, absl::string_view bytes, absl::string_view tenant,
                          TokenHistory* history);

// The errors for bytes in a store: they cannot be right (DATA_LOSS, SESSION_RECORD_DAMAGED), or
// this server does not have their key (FAILED_PRECONDITION, SESSION_RECORD_KEY). `what`: a whole
// sentence.
absl::Status DamagedRecord(absl::string_view what);
absl::Status UnreadableRecord(absl::string_view what);
// Whether `status` is one of these errors, and so concerns one session and not the whole store.
bool IsOfRecord(const absl::Status& status);

}  // namespace rivulet
