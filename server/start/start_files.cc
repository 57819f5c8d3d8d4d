// SPDX-License-Identifier: Apache-2.0
#include "server/start/start_files.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"
#include "model/cache_type.h"
#include "model/gguf_model.h"
#include "server/config/otlp_endpoint.h"
#include "server/request_log/request_id.h"

namespace rivulet {
namespace {

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

}  // namespace

TlsFiles TlsFilesOf(const ServerConfig& config) {
  return {config.tls_cert, config.tls_key, config.tls_client_ca};
}

absl::StatusOr<std::string> ReadSnapshotKey(const ServerConfig& config) {
  const std::string& path = config.snapshot_key_file;
  if (path.empty()) return std::string();
  constexpr size_t kLeast = 16, kMost = 4096;
  const auto text = ReadSmallFile(path, kMost);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("snapshot-key-file ", path));
  const absl::string_view key = absl::StripTrailingAsciiWhitespace(*text);
  if (key.size() >= kLeast) return std::string(key);
  return InvalidField("CONFIG_INVALID", "snapshot-key-file",
                      absl::StrCat("snapshot-key-file ", path, " holds a key of ", key.size(),
                                   " bytes; it needs at least ", kLeast));
}

absl::StatusOr<OtlpOptions> OtlpOptionsOf(const ServerConfig& config) {
  RIVULET_ASSIGN_OR_RETURN(const OtlpEndpoint endpoint, ParseOtlpEndpoint(config.otlp_endpoint));
  OtlpOptions options;
  options.target = endpoint.target;
  options.tls = endpoint.tls;
  if (!config.otlp_ca.empty()) {
    RIVULET_ASSIGN_OR_RETURN(options.authorities, ReadAuthorities("otlp-ca", config.otlp_ca));
  }
  const char* const name = std::getenv("OTEL_SERVICE_NAME");
  const std::string service = name == nullptr ? "" : name;
  if (!IsUtf8(service)) {
    return InvalidField("CONFIG_INVALID", "OTEL_SERVICE_NAME",
                        absl::StrCat("the environment variable OTEL_SERVICE_NAME is ",
                                     Quoted(service), ", which is no UTF-8"));
  }
  options.resource = {{"service.name", service.empty() ? "rivulet-server" : service},
                      {"service.version", RIVULET_VERSION},
                      {"service.instance.id", NewRequestId()}};
  return options;
}

absl::Status CheckRepository(const std::string& directory) {
  std::error_code ignored;
  if (std::filesystem::is_directory(directory, ignored)) return absl::OkStatus();
  return InvalidField("CONFIG_INVALID", "model-repository",
                      absl::StrCat("model-repository is ", directory, ", which is no directory"));
}

absl::Status CheckNewModel(const std::map<std::string, std::string>& directories,
                           const std::string& name, const std::string& directory) {
  const auto other = directories.find(name);
  if (other == directories.end()) return absl::OkStatus();
  return InvalidField("MODEL_NAME_REPEATED", "model",
                      absl::StrCat(other->second, " and ", directory, " both hold a model named ",
                                   Quoted(name), "; --model NAME=DIR gives it another"));
}

std::string FindInRepositories(const std::vector<std::string>& repositories,
                               const std::string& name) {
  for (const std::string& repository : repositories) {
    const std::filesystem::path directory = std::filesystem::path(repository) / name;
    std::error_code ignored;
    if (std::filesystem::is_directory(directory, ignored)) return directory.string();
    std::string file = FindGgufFile(repository, name);
    if (!file.empty()) return file;
  }
  return "";
}

absl::Status CheckWeightNames(const ServerConfig& config,
                              const std::map<std::string, std::string>& directories) {
  for (const std::string& text : config.model_weights) {
    RIVULET_ASSIGN_OR_RETURN(const ModelWeights own, ParseModelWeights(text));
    if (directories.count(own.name) > 0) continue;
    if (!FindInRepositories(config.model_repositories, own.name).empty()) continue;
    const auto append_name = [](std::string* out, const auto& entry) {
      out->append(Quoted(entry.first));
    };
    return InvalidField(
        "CONFIG_INVALID", "model-weights",
        absl::StrCat("model-weights is ", Quoted(text), ", but there is no model ",
                     Quoted(own.name), "; models: ", absl::StrJoin(directories, ", ", append_name),
                     config.model_repositories.empty() ? "" : ", and those of model-repository"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CpuBackendOptions> CpuOptionsOf(const ServerConfig& config, absl::string_view name,
                                               int64_t reserved_bytes) {
  CpuBackendOptions options;
  options.num_slots = config.slots;
  options.max_context = config.max_context;
  RIVULET_ASSIGN_OR_RETURN(options.cache, ParseCacheType(config.kv_cache));
  options.reserved_bytes = reserved_bytes;
  RIVULET_ASSIGN_OR_RETURN(options.weights, WeightsOf(config, name));
  options.threads = config.threads;
  options.count_experts = config.expert_metrics;
  options.max_drafts = config.speculation == "off" ? 0 : config.max_drafts;
  options.speculating_rows = config.speculating_rows;
  return options;
}

absl::Status CudaFault(const ServerConfig& config, const absl::Status& status) {
  // Only a device that is not there leads to the CPU; a device that cannot hold the model is an
  // error.
  const bool absent = absl::IsUnimplemented(status) || absl::IsUnavailable(status);
  if (!absent) return status;
  if (config.backend != "cuda") return absl::OkStatus();
  return Annotate(status, "backend is \"cuda\"; allowed here: cpu, auto");
}

std::vector<AddressWarning> AddressWarnings(const ServerConfig& config) {
  std::vector<AddressWarning> warnings;
  for (const auto& [setting, address] :
       {std::pair("listen", &config.listen), std::pair("admin-listen", &config.admin_listen)}) {
    const auto place = ParseHostPort(*address, setting);
    if (!place.ok() || IsLoopback(place->host)) continue;
    if (!config.keys_file.empty() && config.tls_cert.empty()) {
      warnings.push_back({true, setting, *address,
                          "keys cross the network in clear text; set tls-cert and tls-key"});
    }
    if (config.keys_file.empty() && config.tls_client_ca.empty()) {
      warnings.push_back({false, setting, *address,
                          "whoever reaches the address may call; set keys-file or tls-client-ca, "
                          "or let only those reach it who may call"});
    }
  }
  return warnings;
}

}  // namespace rivulet
