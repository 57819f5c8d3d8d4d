// SPDX-License-Identifier: Apache-2.0
// Snapshot: a client's session as bytes, so that it can continue elsewhere or later.
// server/sessions/SNAPSHOT.md specifies the format; no content is trusted before it is checked.
#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/state_layout.h"
#include "model/backend.h"
#include "model/model.h"

namespace rivulet {

struct Snapshot {
  std::string model_name, weights_sha256, config_sha256;  // hashes: lower-case hex
  std::string numerics_id;                                // of the backend that computed `state`
  kernels::StateLayout layout;  // version 1: of a model of model/FORMAT.md
  // From version 2 on: SHA-256, lower-case hex, of the layout's description; "" in version 1.
  std::string layout_sha256;
  bool grows = false;  // version 3: the state's size depends on `fed` (StateSize)
  std::string tenant;
  uint64_t seed = 0;
  uint64_t sequence_hash = 0;            // of `tokens`, as the session's client sees it
  std::vector<int32_t> tokens;           // given and generated, the implied bos not among them
  std::vector<bool> generated;           // [tokens]
  std::map<std::string, int64_t> marks;  // name -> position, 0 to tokens.size()
  int64_t fed = 0;                       // tokens that `state` has seen, the implied bos counted
  std::vector<float> state;              // of one slot; empty where fed is 0
};

// Sets the fields that identify the model: name, hashes and layout.
void SetFingerprint(const Model& model, Snapshot* snapshot);

// Encodes a snapshot in pieces, so that a large state is not held as bytes, too. Thread: one at a
// time.
class SnapshotEncoder {
 public:
  // Keeps no reference to `snapshot` and ignores snapshot.state: the spans, one after another, are
  // the state, and outlive this. `key`: for the HMAC-SHA-256 that ends the snapshot; empty: none.
  SnapshotEncoder(const Snapshot& snapshot, std::vector<std::span<const float>> state,
                  absl::string_view key);

  // The next bytes: first all before the state, then each time at most 1 MiB of the state with its
  // checksum. Empty: the end.
  std::string Next();
  // Next has returned the last bytes.
  bool ended() const { return ended_; }

 private:
  struct FreeMac {
    void operator()(EVP_MD_CTX* mac) const { EVP_MD_CTX_free(mac); }
  };
  std::string Chunk();
  std::string End();

  std::string begin_;                          // until it is taken
  std::vector<std::span<const float>> state_;  // the rest of the state, the last part first
  std::unique_ptr<EVP_MD_CTX, FreeMac> mac_;   // null: no key
  bool ended_ = false;
};

// All bytes of a snapshot.
std::string EncodeSnapshot(const Snapshot& snapshot, absl::string_view key);

// The number of tokens of the snapshot that begins with these bytes; nullopt: the bytes do not say.
std::optional<int64_t> SnapshotTokens(absl::string_view beginning);

// The snapshot in `bytes`, whole and consistent in itself: checksums, lengths, hash of the tokens,
// marks and `fed` within the history. With a key the HMAC must be there and match; without one it
// is not checked. Takes memory in proportion to the bytes. Errors: DATA_LOSS (SNAPSHOT_DAMAGED),
// FAILED_PRECONDITION (SNAPSHOT_VERSION, SNAPSHOT_KEY).
absl::StatusOr<Snapshot> DecodeSnapshot(absl::string_view bytes, absl::string_view key);

// OK if `snapshot` is of this model and tenant. Its state is checked (size, finite values) only if
// both numerics ids are SameCache (model/cache_type.h). Errors: FAILED_PRECONDITION
// (SNAPSHOT_MODEL: says which part differs), PERMISSION_DENIED (SNAPSHOT_TENANT), DATA_LOSS
// (SNAPSHOT_DAMAGED: a token that the model does not have, a value that is not finite).
absl::Status CheckSnapshot(const Snapshot& snapshot, const Model& model,
                           const BackendLimits& limits, absl::string_view tenant);

// The largest size of a valid snapshot of a session with at most `max_tokens` tokens and a state of
// at most `state_bytes`.
size_t MaxSnapshotBytes(size_t state_bytes, int64_t max_tokens);

}  // namespace rivulet
