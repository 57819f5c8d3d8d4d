// SPDX-License-Identifier: Apache-2.0
#include "server/keys/key_ring.h"

#include <cstring>
#include <utility>

#include "model/base/error.h"
#include "server/log.h"

namespace rivulet {

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Create(std::string path, absl::Time now) {
  const FileStamp stamp = StampOf(path);
  RIVULET_ASSIGN_OR_RETURN(std::vector<ApiKey> keys, ReadKeys(path));
  return std::unique_ptr<KeyRing>(new KeyRing(std::move(path), stamp, now, std::move(keys)));
}

KeyRing::KeyRing(std::string path, const FileStamp& stamp, absl::Time now, std::vector<ApiKey> keys)
    : path_(std::move(path)), stamp_(stamp) {
  MutexLock lock(&mutex_);
  Use(std::move(keys), now);
}

uint64_t KeyRing::IndexOf(const KeyHash& hash) {
  uint64_t index = 0;
  std::memcpy(&index, hash.data(), sizeof(index));
  return index;
}

void KeyRing::Use(std::vector<ApiKey> keys, absl::Time now) {
  const auto before = std::exchange(accounts_, {});
  keys_.clear();
  for (ApiKey& key : keys) {
    const auto known = before.find(key.name);
    if (known == before.end()) {
      key.account = std::make_shared<KeyAccount>(key.name, key.limits, now);
    } else {
      key.account = known->second;
      key.account->SetLimits(key.limits, now);
    }
    accounts_[key.name] = key.account;
    const uint64_t index = IndexOf(key.hash);
    keys_.emplace(index, std::make_shared<const ApiKey>(std::move(key)));
  }
}

void KeyRing::Look(absl::Time now, bool always) {
  const FileStamp stamp = StampOf(path_);
  if (stamp == std::exchange(stamp_, stamp) && !always) return;
  absl::StatusOr<std::vector<ApiKey>> keys = ReadKeys(path_);
  if (!keys.ok()) {
    Log(LogLevel::kError, "keys_reload_failed", {{"reason", std::string(keys.status().message())}});
    return;
  }
  const auto count = static_cast<int64_t>(keys->size());
  {
    MutexLock lock(&mutex_);
    Use(*std::move(keys), now);
  }
  Log(LogLevel::kInfo, "keys_reloaded", {{"keys", count}});
}

std::shared_ptr<const ApiKey> KeyRing::Find(absl::string_view key) {
  const KeyHash hash = HashOf(key);
  MutexLock lock(&mutex_);
  const auto [begin, end] = keys_.equal_range(IndexOf(hash));
  for (auto it = begin; it != end; ++it) {
    if (SameHash(it->second->hash, hash)) return it->second;
  }
  return nullptr;
}

}  // namespace rivulet
