// SPDX-License-Identifier: Apache-2.0
// API keys: what a key allows, and the JSON file that lists them (docs/security.md).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/key_account.h"

namespace rivulet {

using ModelNames = std::set<std::string, std::less<>>;

// The hash of a key. The key itself is stored nowhere on the server.
using KeyHash = std::array<uint8_t, 32>;  // SHA-256

// One key and what its holder may do.
struct ApiKey {
  std::string name;  // for operators
  KeyHash hash = {};
  std::string tenant;                           // its calls use this tenant's sessions and shares
  std::optional<ModelNames> models;             // models that its calls can see; absent: all
  bool admin = false;                           // may call AdminService
  absl::Time expires = absl::InfiniteFuture();  // from then on it is refused
  KeyLimits limits;
  std::shared_ptr<KeyAccount> account;  // counts what `limits` limits; null outside a KeyRing
};

// Thread, of all functions: any.
KeyHash HashOf(absl::string_view key);
// Compares in constant time.
bool SameHash(const KeyHash& a, const KeyHash& b);

// Whether `name` may be a tenant's, and a key's: 1 to 64 of A-Z a-z 0-9 . _ -
bool IsTenantName(absl::string_view name);

// The most bytes that a file of keys may have.
inline constexpr size_t kMaxKeyFileBytes = size_t{4} << 20;

// The keys that the JSON list in `text` names. Names and hashes are distinct. Errors:
// INVALID_ARGUMENT; the message names the field and its value, for example "[2].admin is \"yes\";
// it must be ...". A value of sha256 is not quoted, as it may be a key that was put there by
// mistake.
absl::StatusOr<std::vector<ApiKey>> ParseKeys(absl::string_view text);

// The keys of a file. Errors: NOT_FOUND or INVALID_ARGUMENT, which name the setting keys-file,
// `path`, and what is wrong.
absl::StatusOr<std::vector<ApiKey>> ReadKeys(const std::string& path);

// The list as a text that ParseKeys reads, with one member per line.
std::string KeysToJson(const std::vector<ApiKey>& keys);

// The time as the file shows it: RFC 3339 in UTC, in whole seconds. REQUIRES: not infinite.
std::string ExpiryText(absl::Time time);
// Errors: INVALID_ARGUMENT without a field; the message ends "it must be ...".
absl::StatusOr<absl::Time> ParseExpiry(absl::string_view text);

}  // namespace rivulet
