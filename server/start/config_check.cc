// SPDX-License-Identifier: Apache-2.0
#include "server/start/config_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/cache_type.h"
#include "model/cpu/cpu_backend.h"
#include "model/cuda/cuda_backend.h"
#include "model/model.h"
#include "model/slot_choice.h"
#include "model/weight_choice.h"
#include "server/grpc/connections/acceptor.h"
#include "server/grpc/connections/listening_sockets.h"
#include "server/grpc/grpc_server.h"
#include "server/keys/api_key.h"
#include "server/process/descriptors.h"
#include "server/request_log/request_log.h"
#include "server/start/start_files.h"
#include "server/start/state_setup.h"

namespace rivulet {
namespace {

// Checks a directory that the start makes where it is missing, but whose parent must exist.
absl::Status CheckDirectory(const char* setting, const std::string& path) {
  const auto invalid = [&](absl::string_view where, absl::string_view wrong) {
    return InvalidField("CONFIG_INVALID", setting, absl::StrCat(setting, ": ", where, " ", wrong));
  };
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && !S_ISDIR(info.st_mode)) return invalid(path, "is no directory");
  if (!exists && errno != ENOENT) return invalid(path, std::strerror(errno));
  absl::string_view name = path;
  while (name.size() > 1 && absl::ConsumeSuffix(&name, "/")) {
  }
  const std::filesystem::path parent = std::filesystem::path(std::string(name)).parent_path();
  const std::string used = exists ? path : parent.empty() ? std::string(".") : parent.string();
  if (faccessat(AT_FDCWD, used.c_str(), R_OK | W_OK | X_OK, AT_EACCESS) == 0) {
    return absl::OkStatus();
  }
  const std::string why = std::strerror(errno);
  if (exists) return invalid(path, absl::StrCat("cannot be written: ", why));
  return invalid(path, absl::StrCat("cannot be made in ", used, ": ", why));
}

class Checker {
 public:
  explicit Checker(const ServerConfig& config) : config_(WithinLimits(config)) {
    report_.faults = ServerConfigFaults(config);
  }

  ConfigReport Run() && {
    if (config_.listen.empty()) Note(ParseHostPort(config_.listen).status());
    for (const std::string& directory : config_.model_repositories) {
      Note(CheckRepository(directory));
    }
    CheckFiles();
    CheckModels();
    CheckStates();
    CheckSessionStore();
    CheckAddresses();
    for (const AddressWarning& warning : AddressWarnings(config_)) {
      report_.warnings.push_back(
          absl::StrCat(warning.setting, " is ", warning.address, ": ", warning.reason));
    }
    return std::move(report_);
  }

 private:
  // Two checks may find the same fault.
  void Note(const absl::Status& status) {
    if (status.ok()) return;
    for (const absl::Status& known : report_.faults) {
      if (known.message() == status.message()) return;
    }
    report_.faults.push_back(status);
  }

  void CheckFiles() {
    Note(ReadSnapshotKey(config_).status());
    Note(RequestLog::Check(config_.request_log));
    if (!config_.otlp_endpoint.empty()) Note(OtlpOptionsOf(config_).status());
    if (!config_.keys_file.empty()) Note(ReadKeys(config_.keys_file).status());
    if (!config_.tls_cert.empty() && !config_.tls_key.empty()) {
      Note(ReadTlsFiles(TlsFilesOf(config_), absl::Now()).status());
      // ReadTlsFiles ends at the first fault, but each file may have one.
      Note(ReadAuthorities("tls-cert", config_.tls_cert).status());
      Note(CheckTlsKey(config_.tls_key));
    }
    if (!config_.tls_client_ca.empty()) {
      Note(ReadAuthorities("tls-client-ca", config_.tls_client_ca).status());
    }
  }

  void CheckModels() {
    const absl::Status cuda =
        config_.backend == "cpu" ? absl::OkStatus() : CheckCudaDevice(config_.device);
    const bool on_cpu = config_.backend == "cpu" || !cuda.ok();
    if (!cuda.ok()) Note(CudaFault(config_, cuda));
    const auto weights = ParseWeightChoice(config_.weights);
    if (!on_cpu && weights.ok()) {
      Note(CheckCudaWeights(*weights, config_.precision == "float32"));
    }
    for (const std::string& text : config_.model_weights) {
      const auto own = ParseModelWeights(text);
      if (on_cpu || !own.ok()) continue;
      Note(Annotate(CheckCudaWeights(own->choice, config_.precision == "float32"),
                    absl::StrCat("model-weights ", text)));
    }
    int64_t reserved_bytes = 0;
    bool all_open = true;  // else a name may be that of a model with a fault
    for (const std::string& text : config_.models) {
      const auto place = ParseModelPlace(text);
      if (!place.ok()) continue;  // a fault of the setting
      const auto model = Model::Open(place->directory, place->name);
      Note(model.status());
      all_open = all_open && model.ok();
      if (!model.ok()) continue;
      const std::string& name = (*model)->config().name;
      Note(CheckNewModel(directories_, name, place->directory));
      directories_[name] = place->directory;
      Note(CheckOnBackend(**model, on_cpu, &reserved_bytes));
    }
    if (all_open) Note(CheckWeightNames(config_, directories_));
  }

  absl::Status CheckOnBackend(const Model& model, bool on_cpu, int64_t* reserved_bytes) {
    absl::StatusOr<CpuBackendOptions> options =
        CpuOptionsOf(config_, model.config().name, *reserved_bytes);
    if (!options.ok()) return options.status();
    // For a GPU this checks the tensors, but not its memory.
    if (!on_cpu) options->num_slots = 1;
    if (!on_cpu) options->weights = {};
    if (!on_cpu) options->max_context.slots = std::nullopt;
    const auto limits = PlanCpuBackend(model, *options);
    if (!limits.ok()) return Annotate(limits.status(), model.directory());
    if (!on_cpu) return absl::OkStatus();
    *reserved_bytes += static_cast<int64_t>(limits->weight_bytes + limits->drafts.bytes) +
                       static_cast<int64_t>(limits->bytes_per_slot) * limits->num_slots;
    if (!limits->contexts.empty()) {
      report_.notes.push_back(
          absl::StrCat("model ", model.config().name, ": a context of ", limits->context, " with ",
                       limits->num_slots, " slots; slots by context with --kv-cache ",
                       CacheTypeName(options->cache), ": ", SlotsByContextText(limits->contexts)));
    }
    absl::Status memory = CheckHostMemory(config_, *limits);
    if (memory.ok()) memory = CheckKeptMemory(config_, *limits);
    return memory.ok() ? memory : Annotate(memory, model.directory());
  }

  void CheckStates() {
    const auto key = ReadSnapshotKey(config_);
    if (key.ok()) Note(WarmFiles::Read(config_, *key).status());
    if (config_.state_dir.empty()) return;
    const absl::Status directory = CheckDirectory("state-dir", config_.state_dir);
    Note(directory);
    if (!directory.ok() || !std::filesystem::is_directory(config_.state_dir)) return;
    for (const auto& [name, ignored] : directories_) {
      Note(CheckDirectory("state-dir", absl::StrCat(config_.state_dir, "/", name)));
    }
  }

  void CheckSessionStore() {
    std::shared_ptr<const Sealer> sealer;
    if (const std::string& path = config_.session_store_encryption_keys; !path.empty()) {
      auto keys = ReadSealKeys(path);
      Note(keys.status());
      if (keys.ok()) sealer = std::make_shared<Sealer>(*std::move(keys));
    }
    absl::string_view path = config_.session_store;
    if (absl::ConsumePrefix(&path, "dir:")) {
      const std::string directory(path);
      // Opens nothing, because that would make files.
      std::error_code ignored;
      if (directory.empty() || std::filesystem::is_directory(directory + "/sessions-1", ignored)) {
        Note(OpenSessionStore(config_, sealer).status());
      } else {
        Note(CheckDirectory("session-store", directory));
      }
    } else {
      const absl::Status opened = OpenSessionStore(config_, sealer, true).status();
      if (absl::IsUnavailable(opened)) {
        report_.warnings.push_back(
            absl::StrCat(opened.message(), "; a server starts without it and keeps trying"));
      } else {
        Note(opened);
      }
      if (!opened.ok()) return;
    }
    const std::string states = StateArchiveDirectory(config_);
    std::error_code ignored;
    if (states.empty() || std::filesystem::is_directory(states, ignored)) {
      Note(OpenStateArchive(config_, sealer).status());
    } else if (config_.session_states != "store") {
      Note(CheckDirectory("session-states", states));
    }
  }

  void CheckAddresses() {
    std::vector<std::pair<const char*, HostPort>> others;
    for (const auto& [setting, address] :
         {std::pair("listen", &config_.listen), std::pair("admin-listen", &config_.admin_listen),
          std::pair("metrics-listen", &config_.metrics_listen)}) {
      const auto place = ParseHostPort(*address, setting);
      if (!place.ok()) continue;  // a fault of the setting, or none
      absl::Status listened = TryToListen(*place);
      for (const auto& [other, taken] : others) {
        if (!listened.ok() || !CollidesWith(taken, *place)) continue;
        listened = absl::UnavailableError(absl::StrCat("it is the address of ", other));
      }
      if (listened.ok()) {
        others.emplace_back(setting, *place);
        continue;
      }
      Note(MakeError(listened.code(),
                     absl::StrCat("cannot listen on ", *address, ", the value of ", setting, ": ",
                                  listened.message()),
                     {"ADDRESS_UNAVAILABLE", setting, {}}));
    }
    Note(CheckMaxConnections(
        config_.max_connections,
        ConnectionsThatFit(DescriptorLimit(), OpenDescriptors(), kDescriptorsPerConnection)));
  }

  const ServerConfig config_;
  ConfigReport report_;
  std::map<std::string, std::string> directories_;  // of models, by their names
};

}  // namespace

ConfigReport CheckConfig(const ServerConfig& config) { return Checker(config).Run(); }

}  // namespace rivulet
