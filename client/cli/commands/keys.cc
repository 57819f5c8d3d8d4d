// SPDX-License-Identifier: Apache-2.0
// `rivulet keys`: the file of API keys that rivulet-server --keys-file reads.
#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "server/keys/key_file.h"
#include "server/keys/key_json.h"

namespace rivulet {
namespace {

absl::StatusOr<std::string> New(const KeysOptions& options) {
  const std::string secret = NewKey();
  ApiKey key;
  key.name = options.name;
  key.hash = HashOf(secret);
  key.tenant = options.tenant.empty() ? options.name : options.tenant;
  if (!options.models.empty()) {
    key.models = ModelNames(options.models.begin(), options.models.end());
  }
  key.admin = options.admin;
  if (!options.expires.empty()) {
    const absl::StatusOr<absl::Time> time = ParseExpiry(options.expires);
    if (!time.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--expires is \"", options.expires,
                                                     "\"; it must be ", time.status().message()));
    }
    key.expires = *time;
  }
  key.limits = options.limits;
  const auto add = [&](std::vector<ApiKey>* keys) -> absl::Status {
    for (const ApiKey& other : *keys) {
      if (other.name != key.name) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("keys-file ", options.file, " has a key named ", key.name, " already"));
    }
    keys->push_back(key);
    // A file that the server would refuse is not written.
    return ParseKeys(KeysToJson(*keys)).status();
  };
  RIVULET_RETURN_IF_ERROR(EditKeys(options.file, /*make=*/true, add));
  RIVULET_RETURN_IF_ERROR(WriteOut(secret + "\n"));
  return absl::StrCat("key ", key.name, " of tenant ", key.tenant, " added to ", options.file,
                      "; the key is not shown again");
}

std::string JsonLine(const ApiKey& key) {
  nlohmann::ordered_json json = KeyToJson(key);
  json.erase("sha256");
  json["admin"] = key.admin;
  json["expired"] = absl::Now() >= key.expires;
  return json.dump() + "\n";
}

// "requests_per_minute=60", as in the file.
std::string LimitsText(const KeyLimits& limits) {
  std::vector<std::string> parts;
  for (const KeyLimit& limit : kKeyLimits) {
    const int64_t value = limits.*limit.value;
    if (value > 0) parts.push_back(absl::StrCat(limit.name, "=", value));
  }
  return parts.empty() ? "no limits" : absl::StrJoin(parts, ",");
}

absl::StatusOr<std::string> List(const KeysOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const std::vector<ApiKey> keys, ReadKeys(options.file));
  std::string lines;
  std::vector<std::vector<std::string>> rows;
  for (const ApiKey& key : keys) {
    if (options.json) lines += JsonLine(key);
    const bool expired = absl::Now() >= key.expires;
    rows.push_back({key.name, key.tenant,
                    key.models ? absl::StrJoin(*key.models, ",") : "all models",
                    key.admin ? "admin" : "client",
                    key.expires == absl::InfiniteFuture()
                        ? "no expiry"
                        : absl::StrCat(expired ? "expired " : "until ", ExpiryText(key.expires)),
                    LimitsText(key.limits)});
  }
  if (!options.json) lines = Table(rows);
  RIVULET_RETURN_IF_ERROR(WriteOut(lines));
  return std::string();
}

absl::StatusOr<std::string> Revoke(const KeysOptions& options) {
  const auto remove = [&](std::vector<ApiKey>* keys) -> absl::Status {
    const size_t removed =
        std::erase_if(*keys, [&](const ApiKey& key) { return key.name == options.name; });
    if (removed > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("keys-file ", options.file, " has no key named ", options.name));
  };
  RIVULET_RETURN_IF_ERROR(EditKeys(options.file, /*make=*/false, remove));
  return absl::StrCat("key ", options.name, " removed from ", options.file,
                      "; running servers notice at the next call, or on SIGHUP");
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const KeysOptions& options) {
  switch (options.action) {
    case KeysAction::kNew:
      return New(options);
    case KeysAction::kList:
      return List(options);
    case KeysAction::kRevoke:
      break;
  }
  return Revoke(options);
}

}  // namespace rivulet
