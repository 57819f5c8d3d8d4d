// SPDX-License-Identifier: Apache-2.0
#include "server/start/seal_key_file.h"

#include <utility>

#include "model/base/error.h"
#include "server/log.h"

namespace rivulet {

absl::StatusOr<std::unique_ptr<SealKeyFile>> SealKeyFile::Create(std::string path) {
  const FileStamp stamp = StampOf(path);
  RIVULET_ASSIGN_OR_RETURN(SealKeys keys, ReadSealKeys(path));
  return std::unique_ptr<SealKeyFile>(new SealKeyFile(std::move(path), stamp, std::move(keys)));
}

SealKeyFile::SealKeyFile(std::string path, const FileStamp& stamp, SealKeys keys)
    : path_(std::move(path)), sealer_(std::make_shared<Sealer>(std::move(keys))), stamp_(stamp) {}

void SealKeyFile::Look(bool always) {
  const FileStamp stamp = StampOf(path_);
  if (stamp == std::exchange(stamp_, stamp) && !always) return;
  absl::StatusOr<SealKeys> keys = ReadSealKeys(path_);
  const std::string first = keys.ok() ? keys->keys[0].id : "";
  const absl::Status status = keys.ok() ? sealer_->Use(*std::move(keys)) : keys.status();
  if (status.ok()) return Log(LogLevel::kInfo, "session_store_keys", {{"encrypts_with", first}});
  Log(LogLevel::kError, "session_store_keys_failed", {{"reason", std::string(status.message())}});
}

}  // namespace rivulet
