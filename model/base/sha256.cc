// SPDX-License-Identifier: Apache-2.0
#include "model/base/sha256.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"

namespace rivulet {

std::string Sha256Hex(absl::string_view bytes) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash), sizeof hash));
}

}  // namespace rivulet
