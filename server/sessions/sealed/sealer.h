// SPDX-License-Identifier: Apache-2.0
// Sealer: AES-256-GCM for the content of a store that replicas share, with the keys of a file that
// may change while the store is used. Sealed bytes are
//
//   "RVE" 1  length of the key's id u8  id  nonce[12]  ciphertext  tag[16]
//
// and the tag also covers the bytes before the nonce and the associated data.
//
// Nonces are random. Under one AES key no two nonces may be the same, so a key may seal 2^32 times
// (NIST SP 800-38D, 8.3). Therefore the AES key is not the key of the file but HMAC-SHA-256(key of
// the file, associated data): the limit holds for each value of the associated data, and not for a
// key of the file. The associated data of a record has the claim, which each write draws anew.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/mutex.h"

namespace rivulet {

struct SealKeys {
  struct Key {
    std::string id;
    std::string bytes;  // 32
  };
  std::vector<Key> keys;  // the first seals, each can open; at least one
  std::string store_key;  // 32 bytes, always the same: for Name and SealBySecret
};

// Reads a file of lines "ID KEY", KEY being 64 hexadecimal digits. The ID "store" names store_key;
// the other IDs are 1 to 32 of A-Z a-z 0-9 . _ - each. Lines that begin with # are comments.
// Errors: INVALID_ARGUMENT (CONFIG_INVALID, session-store-encryption-keys), which name file and
// line and repeat nothing of the line.
absl::StatusOr<SealKeys> ReadSealKeys(const std::string& path);

// Thread: any.
class Sealer {
 public:
  explicit Sealer(SealKeys keys);
  // From now on `keys` are used. FAILED_PRECONDITION: their store_key differs from the present
  // store_key, so nothing in the store would be found again.
  absl::Status Use(SealKeys keys);

  // Seals under the first key. For bytes that are written anew before that key leaves the file.
  // REQUIRES: less than 2 GiB.
  std::string Seal(absl::string_view plaintext, absl::string_view associated_data) const;
  // The plaintext that Seal got. Errors: FAILED_PRECONDITION (not sealed, or with a key that is not
  // in the file), DATA_LOSS (changed, or sealed with other associated data). The message is a
  // clause about the bytes, "they are not encrypted ...", and contains no key.
  absl::StatusOr<std::string> Open(absl::string_view bytes,
                                   absl::string_view associated_data) const;

  // The same under a key that follows from store_key and `secret`: at least 16 bytes that nobody
  // can guess and that the store must not learn. For bytes that are written once and stay: who
  // knows the secret can open them even after keys have left the file.
  std::string SealBySecret(absl::string_view plaintext, absl::string_view secret) const;
  absl::StatusOr<std::string> OpenBySecret(absl::string_view bytes, absl::string_view secret) const;

  // 64 hexadecimal digits that follow from store_key and `text`. Without store_key they tell only
  // whether two texts are the same.
  std::string Name(absl::string_view text) const;

 private:
  std::shared_ptr<const SealKeys> keys() const;

  const std::string store_key_;
  mutable Mutex mutex_;
  std::shared_ptr<const SealKeys> keys_ ABSL_GUARDED_BY(mutex_);
};

// Whether bytes begin as a Sealer's bytes do.
bool IsSealed(absl::string_view bytes);

}  // namespace rivulet
