// SPDX-License-Identifier: Apache-2.0
// The settings about states: where the states of a model may go, and which states it begins with.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/model.h"
#include "server/config/server_config.h"
#include "server/engine/engine.h"
#include "server/sessions/replicated/session_store.h"
#include "server/sessions/replicated/state_archive.h"
#include "server/sessions/sealed/sealer.h"
#include "server/sessions/snapshot.h"

namespace rivulet {

// The limits of `config` on sessions, their states and cached prompts.
void SetStateOptions(const ServerConfig& config, EngineOptions* options);

// OK if parked-state-mib is 0 or enough for preemption (LeastHostBytes). Errors: INVALID_ARGUMENT
// naming the setting.
absl::Status CheckHostMemory(const ServerConfig& config, const BackendLimits& limits);

// OK if session-state-mib, prefix-cache-mib and, with state-dir, state-disk-mib are 0 or enough for
// one state. Errors: INVALID_ARGUMENT naming the first setting that is too small.
absl::Status CheckKeptMemory(const ServerConfig& config, const BackendLimits& limits);

// The store that config.session_store names; null for "none". `sealer`: encrypts it; null: not
// encrypted. Errors: INVALID_ARGUMENT naming the setting; the errors of OpenDirSessionStore and
// OpenRedisSessionStore; with `must_be_reachable`, UNAVAILABLE if a Redis cannot be reached.
absl::StatusOr<std::shared_ptr<SessionStore>> OpenSessionStore(const ServerConfig& config,
                                                               std::shared_ptr<const Sealer> sealer,
                                                               bool must_be_reachable = false);

// The archive for published states that config.session_states names; null where no store is shared,
// and for "none". `sealer`: as OpenSessionStore. Errors: INVALID_ARGUMENT naming the setting; the
// errors of OpenDirStateArchive and OpenRedisStateArchive.
absl::StatusOr<std::shared_ptr<StateArchive>> OpenStateArchive(
    const ServerConfig& config, std::shared_ptr<const Sealer> sealer);

// The directory that OpenStateArchive would use; "": none.
std::string StateArchiveDirectory(const ServerConfig& config);

// Files in STATE-DIR/NAME; empty where config.state_dir is "". Errors: as OpenStateDirectory.
absl::StatusOr<DiskTier> OpenDiskTier(const ServerConfig& config, const std::string& model_name);

// The snapshots that config.warm_states names: files, or directories of files, of one or several
// models. Their states are for all tenants, because the operator has named the files; the tenant in
// a snapshot is ignored. Thread: any, once it is made.
class WarmFiles {
 public:
  // Reads all files; each must have a state. `key`: of their signatures; "": unchecked. Errors: the
  // errors of DecodeSnapshot, NOT_FOUND, INVALID_ARGUMENT; the message begins with the file.
  static absl::StatusOr<WarmFiles> Read(const ServerConfig& config, absl::string_view key);

  // INVALID_ARGUMENT (WARM_STATE_MODEL) if a file belongs to none of these models.
  absl::Status CheckModels(const std::vector<std::shared_ptr<const Model>>& models) const;
  // The states of `model`; not those of another model that keeps the same weights in another type
  // (model-weights). Errors: INVALID_ARGUMENT (WARM_STATE_NUMERICS: computed by another
  // backend or build, so requests would get other tokens than without the state; WARM_STATE_MEMORY;
  // TOO_MANY_TOKENS: more than a slot has room for); the errors of CheckSnapshot.
  absl::StatusOr<std::vector<WarmState>> Of(const Model& model, const BackendLimits& limits,
                                            int64_t max_bytes) const;

 private:
  struct File {
    std::string path;
    Snapshot snapshot;
  };
  std::vector<File> files_;
  std::set<std::string> own_weights_;  // names in model-weights
};

}  // namespace rivulet
