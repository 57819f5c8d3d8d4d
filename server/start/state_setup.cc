// SPDX-License-Identifier: Apache-2.0
#include "server/start/state_setup.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "server/engine/loop/host_memory.h"
#include "server/log.h"
#include "server/sessions/dir/dir_session_store.h"
#include "server/sessions/dir/dir_state_archive.h"
#include "server/sessions/redis/redis_session_store.h"
#include "server/sessions/redis/redis_state_archive.h"
#include "server/sessions/sealed/encrypted_session_store.h"
#include "server/sessions/sealed/encrypted_state_archive.h"
#include "server/sessions/snapshot.h"

namespace rivulet {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxWarmBytes = uint64_t{1} << 30;

absl::Status BadWarmFile(absl::string_view reason, const std::string& path,
                         absl::string_view what) {
  return InvalidField(reason, "warm-states", absl::StrCat(path, ": ", what));
}

// The path itself, or the files of a directory in the order of their names.
absl::StatusOr<std::vector<std::string>> FilesAt(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.empty() && name[0] != '.') files.push_back(entry->path().string());
  }
  if (error) return BadWarmFile("CONFIG_INVALID", path, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<Snapshot> ReadSnapshot(const std::string& path, absl::string_view key) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (!error && size > kMaxWarmBytes) {
    return InvalidField(
        "CONFIG_INVALID", "warm-states",
        absl::StrCat("the file has more than the allowed ", kMaxWarmBytes, " bytes"));
  }
  RIVULET_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(path, error ? 0 : size));
  RIVULET_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes, key));
  if (snapshot.state.empty()) {
    return InvalidField("CONFIG_INVALID", "warm-states",
                        "the snapshot holds no state: its session had no tokens");
  }
  return snapshot;
}

}  // namespace

void SetStateOptions(const ServerConfig& config, EngineOptions* options) {
  options->sessions.max_open_sessions = config.max_open_sessions;
  options->sessions.max_tenant_sessions = config.max_tenant_sessions;
  options->sessions.max_tenant_bytes = int64_t{config.session_store_tenant_mib} << 20;
  options->sessions.checkpoint_tokens = config.checkpoint_tokens;
  options->states.max_memory_bytes = int64_t{config.session_state_mib} << 20;
  options->states.max_disk_bytes = int64_t{config.state_disk_mib} << 20;
  options->prefix_cache.max_bytes = int64_t{config.prefix_cache_mib} << 20;
}

absl::Status CheckHostMemory(const ServerConfig& config, const BackendLimits& limits) {
  const int64_t given = int64_t{config.parked_state_mib} << 20;
  const int64_t least = LeastHostBytes(limits);
  if (given == 0 || given >= least) return absl::OkStatus();
  constexpr int64_t kMib = int64_t{1} << 20;
  return InvalidField(
      "CONFIG_INVALID", "parked-state-mib",
      absl::StrCat("parked-state-mib is ", config.parked_state_mib, "; the states of ",
                   limits.num_slots, " slots twice take at least ", (least + kMib - 1) / kMib,
                   ", so that replies can be preempted; 0: this amount and 256 MiB"));
}

absl::Status CheckKeptMemory(const ServerConfig& config, const BackendLimits& limits) {
  const struct {
    const char* name;
    int mib;
    const char* none;  // the meaning of 0
  } kSettings[] = {
      {"session-state-mib", config.session_state_mib, "no state is kept in memory"},
      {"prefix-cache-mib", config.prefix_cache_mib, "no prompt cache"},
      {"state-disk-mib", config.state_dir.empty() ? 0 : config.state_disk_mib, "no state files"},
  };
  // A state that grows is kept while it is small enough.
  const size_t least = limits.context > 0 ? limits.state.At(1) : limits.bytes_per_slot;
  for (const auto& setting : kSettings) {
    const uint64_t bytes = uint64_t{static_cast<uint32_t>(setting.mib)} << 20;
    if (bytes == 0 || bytes >= least) continue;
    return InvalidField("CONFIG_INVALID", setting.name,
                        absl::StrCat(setting.name, " is ", setting.mib,
                                     ", which is less than one state of this model, ", least,
                                     " bytes; allowed: at least ", (least + (1 << 20) - 1) >> 20,
                                     ", or 0: ", setting.none));
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<RedisOptions> RedisOptionsOf(const ServerConfig& config) {
  RedisOptions options;
  RIVULET_ASSIGN_OR_RETURN(options.url, ParseRedisUrl(config.session_store));
  options.password_file = config.session_store_password_file;
  options.sentinel_user = config.session_store_sentinel_user;
  options.sentinel_password_file = config.session_store_sentinel_password_file;
  options.ca_file = config.session_store_ca;
  options.cert_file = config.session_store_cert;
  options.key_file = config.session_store_key;
  options.server_name = config.session_store_server_name;
  options.key_prefix = config.session_store_key_prefix;
  return options;
}

absl::StatusOr<std::shared_ptr<SessionStore>> OpenRedis(const ServerConfig& config,
                                                        bool must_be_reachable) {
  RIVULET_ASSIGN_OR_RETURN(RedisOptions options, RedisOptionsOf(config));
  options.must_be_reachable = must_be_reachable;
  options.on_connected = [](const RedisFacts& facts) {
    Log(LogLevel::kInfo, "session_store_connected",
        {{"address", facts.address},
         {"version", facts.version},
         {"max_memory_policy", facts.max_memory_policy},
         {"append_only_file", facts.append_only_file}});
    if (facts.max_memory_policy != "noeviction") {
      Log(LogLevel::kWarning, "session_store_evicts",
          {{"max_memory_policy", facts.max_memory_policy},
           {"reason", std::string("Redis deletes sessions that are in use when its memory is "
                                  "full; set maxmemory-policy noeviction")}});
    }
  };
  options.on_disconnected = [](const absl::Status& status) {
    Log(LogLevel::kWarning, "session_store_disconnected",
        {{"reason", std::string(status.message())}});
  };
  RIVULET_ASSIGN_OR_RETURN(auto store, OpenRedisSessionStore(options));
  return std::shared_ptr<SessionStore>(std::move(store));
}

absl::StatusOr<std::shared_ptr<SessionStore>> OpenStoreInClear(const ServerConfig& config,
                                                               bool must_be_reachable) {
  absl::string_view where = config.session_store;
  if (where == "none") return nullptr;
  if (absl::ConsumePrefix(&where, "dir:")) {
    RIVULET_ASSIGN_OR_RETURN(auto store, OpenDirSessionStore(std::string(where)));
    return std::shared_ptr<SessionStore>(std::move(store));
  }
  if (absl::StartsWith(where, "redis")) return OpenRedis(config, must_be_reachable);
  return InvalidField("CONFIG_INVALID", "session-store",
                      absl::StrCat("session-store is ", Quoted(where),
                                   "; allowed: none, dir:PATH, redis://..., rediss://..., "
                                   "redis+sentinel://... and rediss+sentinel://..."));
}

absl::StatusOr<std::shared_ptr<StateArchive>> OpenArchiveInClear(const ServerConfig& config) {
  absl::string_view where = config.session_states;
  const bool in_directory = absl::ConsumePrefix(&where, "dir:");
  if (!in_directory && where != "store" && where != "none") {
    return InvalidField(
        "CONFIG_INVALID", "session-states",
        absl::StrCat("session-states is ", Quoted(where), "; allowed: store, none and dir:PATH"));
  }
  if (in_directory && config.session_store == "none") {
    return InvalidField("CONFIG_INVALID", "session-states",
                        absl::StrCat("session-states is ", Quoted(config.session_states),
                                     "; it needs a session-store"));
  }
  if (config.session_store == "none" || where == "none") return nullptr;
  StateArchiveLimits limits;
  limits.max_bytes = int64_t{config.session_states_mib} << 20;
  if (const std::string directory = StateArchiveDirectory(config); !directory.empty()) {
    RIVULET_ASSIGN_OR_RETURN(auto archive, OpenDirStateArchive(directory, limits));
    return std::shared_ptr<StateArchive>(std::move(archive));
  }
  RIVULET_ASSIGN_OR_RETURN(const RedisOptions options, RedisOptionsOf(config));
  RIVULET_ASSIGN_OR_RETURN(auto archive, OpenRedisStateArchive(options, limits));
  return std::shared_ptr<StateArchive>(std::move(archive));
}

}  // namespace

absl::StatusOr<std::shared_ptr<SessionStore>> OpenSessionStore(const ServerConfig& config,
                                                               std::shared_ptr<const Sealer> sealer,
                                                               bool must_be_reachable) {
  RIVULET_ASSIGN_OR_RETURN(std::shared_ptr<SessionStore> store,
                           OpenStoreInClear(config, must_be_reachable));
  if (store == nullptr || sealer == nullptr) return store;
  return MakeEncryptedSessionStore(std::move(store), std::move(sealer));
}

std::string StateArchiveDirectory(const ServerConfig& config) {
  absl::string_view where = config.session_states, store = config.session_store;
  if (store == "none") return "";
  if (absl::ConsumePrefix(&where, "dir:")) return std::string(where);
  const bool beside_sessions = where == "store" && absl::ConsumePrefix(&store, "dir:");
  return beside_sessions ? absl::StrCat(store, "/states") : "";
}

absl::StatusOr<std::shared_ptr<StateArchive>> OpenStateArchive(
    const ServerConfig& config, std::shared_ptr<const Sealer> sealer) {
  RIVULET_ASSIGN_OR_RETURN(std::shared_ptr<StateArchive> archive, OpenArchiveInClear(config));
  if (archive == nullptr || sealer == nullptr) return archive;
  return MakeEncryptedStateArchive(std::move(archive), std::move(sealer));
}

absl::StatusOr<DiskTier> OpenDiskTier(const ServerConfig& config, const std::string& model_name) {
  DiskTier tier;
  if (config.state_dir.empty()) return tier;
  RIVULET_RETURN_IF_ERROR(MakeStateDirectory(config.state_dir));
  RIVULET_ASSIGN_OR_RETURN(tier.files,
                           OpenStateDirectory(absl::StrCat(config.state_dir, "/", model_name)));
  return tier;
}

absl::StatusOr<WarmFiles> WarmFiles::Read(const ServerConfig& config, absl::string_view key) {
  WarmFiles warm;
  for (const std::string& text : config.model_weights) {
    RIVULET_ASSIGN_OR_RETURN(const ModelWeights own, ParseModelWeights(text));
    warm.own_weights_.insert(own.name);
  }
  for (const std::string& path : config.warm_states) {
    RIVULET_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesAt(path));
    for (const std::string& file : files) {
      absl::StatusOr<Snapshot> snapshot = ReadSnapshot(file, key);
      if (!snapshot.ok()) return Annotate(snapshot.status(), file);
      warm.files_.push_back({file, *std::move(snapshot)});
    }
  }
  return warm;
}

absl::Status WarmFiles::CheckModels(const std::vector<std::shared_ptr<const Model>>& models) const {
  for (const File& file : files_) {
    const bool known = std::any_of(models.begin(), models.end(), [&](const auto& model) {
      return model->weights_sha256() == file.snapshot.weights_sha256;
    });
    if (known) continue;
    return BadWarmFile("WARM_STATE_MODEL", file.path,
                       absl::StrCat("the snapshot is of model \"", file.snapshot.model_name,
                                    "\" with weights that no model here has"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WarmState>> WarmFiles::Of(const Model& model,
                                                     const BackendLimits& limits,
                                                     int64_t max_bytes) const {
  std::vector<WarmState> states;
  int64_t bytes = 0;
  for (const File& file : files_) {
    const Snapshot& snapshot = file.snapshot;
    if (snapshot.weights_sha256 != model.weights_sha256()) continue;
    const absl::Status status = CheckSnapshot(snapshot, model, limits, snapshot.tenant);
    if (!status.ok()) return Annotate(status, file.path);
    if (limits.context > 0 && snapshot.fed > limits.context) {
      return BadWarmFile(
          "TOO_MANY_TOKENS", file.path,
          absl::StrCat("the state has seen ", snapshot.fed,
                       " tokens, a sequence here has room for ", limits.context, " (max-context)"));
    }
    if (snapshot.numerics_id != limits.numerics_id) {
      const std::string &ours = model.config().name, &theirs = snapshot.model_name;
      if (ours != theirs && own_weights_.count(ours) + own_weights_.count(theirs) > 0) continue;
      return BadWarmFile(
          "WARM_STATE_NUMERICS", file.path,
          absl::StrCat("the state was computed with numerics id ", snapshot.numerics_id,
                       ", this server has ", limits.numerics_id,
                       ": take the snapshot again with this server"));
    }
    bytes += static_cast<int64_t>(snapshot.state.size() * sizeof(float));
    if (bytes > max_bytes) {
      return BadWarmFile("WARM_STATE_MEMORY", file.path,
                         absl::StrCat("the states up to this one take ", bytes,
                                      " bytes, session-state-mib allows ", max_bytes));
    }
    states.push_back({snapshot.tokens, snapshot.fed, snapshot.state});
  }
  return states;
}

}  // namespace rivulet
