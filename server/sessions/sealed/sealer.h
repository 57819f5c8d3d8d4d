// SPDX-License-Identifier: Apache-2.0
// Sealer: AES-256-GCM for what a store that replicas share holds, with the keys of a file that may
// change while it is used. Sealed bytes are
//
//   "RVE" 1  length of the key's id u8  id  nonce[12]  ciphertext  tag[16]
//
// and the tag is also of what stands before the nonce and of the associated data.
//
// Nonces are random. Under one AES key no two may be the same, so it may seal 2^32 times (NIST
// SP 800-38D, 8.3). Therefore the AES key is not that of the file but HMAC-SHA-256(key of the file,
// associated data): the limit holds for each associated data, and not for a key of the file. That
// of a record has the claim, which each write draws anew.
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
  std::vector<Key> keys;  // the first seals, all of them open; at least one
  std::string store_key;  // 32 bytes, always the same: of names, and of SealBySecret
};

// Reads a file of lines "ID KEY", KEY being 64 hexadecimal digits. The ID "store" is that of
// store_key; another one is 1 to 32 of A-Z a-z 0-9 . _ - and there may be several. Lines that begin
// with # are comments. Errors: INVALID_ARGUMENT (CONFIG_INVALID, session-store-encryption-keys),
// which name file and line and repeat nothing of the line.
absl::StatusOr<SealKeys> ReadSealKeys(const std::string& path);

// Thread: any.
class Sealer {
 public:
  explicit Sealer(SealKeys keys);
  // From now on `keys` are used. FAILED_PRECONDITION: their store_key is another one than before,
  // under which nobody would find what the store has.
  absl::Status Use(SealKeys keys);

  // Under the first key. For what is written anew before that key leaves the file. REQUIRES: less
  // than 2 GiB.
  std::string Seal(absl::string_view plaintext, absl::string_view associated_data) const;
  // What Seal got. Errors: FAILED_PRECONDITION (not sealed, or with a key that is not in the file),
  // DATA_LOSS (changed, or sealed with other associated data). Their message is a clause about the
  // bytes, "they are not encrypted ...", which holds no key.
  absl::StatusOr<std::string> Open(absl::string_view bytes,
                                   absl::string_view associated_data) const;

  // The same under a key that follows from store_key and `secret`, at least 16 bytes that nobody
  // can guess, of which the store must not learn. For what is written once and stays: it can be
  // opened whichever keys have left the file, by those who know the secret.
  std::string SealBySecret(absl::string_view plaintext, absl::string_view secret) const;
  absl::StatusOr<std::string> OpenBySecret(absl::string_view bytes, absl::string_view secret) const;

  // 64 of 0-9 a-f that follow from store_key and `text`, and tell those without that key nothing of
  // it but whether it is the same again.
  std::string Name(absl::string_view text) const;

 private:
  std::shared_ptr<const SealKeys> keys() const;

  const std::string store_key_;
  mutable Mutex mutex_;
  std::shared_ptr<const SealKeys> keys_ ABSL_GUARDED_BY(mutex_);
};

// Whether bytes begin as those of a Sealer do.
bool IsSealed(absl::string_view bytes);

}  // namespace rivulet
