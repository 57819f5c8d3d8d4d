// SPDX-License-Identifier: Apache-2.0
// SealKeyFile: the Sealer of a server, from a file that may change while it serves. A FileWatch
// calls Look.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/file_stamp.h"
#include "server/sessions/sealed/sealer.h"

namespace rivulet {

// Thread: any, but Look one at a time.
class SealKeyFile {
 public:
  // Errors: those of ReadSealKeys.
  static absl::StatusOr<std::unique_ptr<SealKeyFile>> Create(std::string path);

  const std::shared_ptr<Sealer>& sealer() const { return sealer_; }
  // Reads the file if it has changed, or `always`. If it cannot be used, an event is logged
  // (session_store_keys_failed), and the keys stay as they were.
  void Look(bool always);

 private:
  SealKeyFile(std::string path, const FileStamp& stamp, SealKeys keys);

  const std::string path_;
  const std::shared_ptr<Sealer> sealer_;
  FileStamp stamp_;
};

}  // namespace rivulet
