// SPDX-License-Identifier: Apache-2.0
// Reads the settings that name files, addresses and backends in the same way for Server::Create and
// CheckConfig (config_check.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/backend_options.h"
#include "server/config/server_config.h"
#include "server/grpc/connections/tls_files.h"
#include "server/tracing/otlp_exporter.h"

namespace rivulet {

TlsFiles TlsFilesOf(const ServerConfig& config);

// The bytes of snapshot-key-file except white space at its end; "" for no file. Errors: NOT_FOUND,
// INVALID_ARGUMENT.
absl::StatusOr<std::string> ReadSnapshotKey(const ServerConfig& config);

// The options from otlp-endpoint and otlp-ca, and the attributes of this process, with a new
// instance id each time. Errors: INVALID_ARGUMENT, NOT_FOUND. REQUIRES: there is an otlp-endpoint.
absl::StatusOr<OtlpOptions> OtlpOptionsOf(const ServerConfig& config);

// A missing repository at the start is an error. An empty repository is allowed.
absl::Status CheckRepository(const std::string& directory);

// Errors: INVALID_ARGUMENT (MODEL_NAME_REPEATED) if `directories`, by the names of their models,
// has a model `name` already.
absl::Status CheckNewModel(const std::map<std::string, std::string>& directories,
                           const std::string& name, const std::string& directory);

// The directory or GGUF file of the model `name` in the first of `repositories` that has it; "".
std::string FindInRepositories(const std::vector<std::string>& repositories,
                               const std::string& name);

// Errors: INVALID_ARGUMENT if model-weights names a model that is neither in `directories` (by
// names) nor in a repository.
absl::Status CheckWeightNames(const ServerConfig& config,
                              const std::map<std::string, std::string>& directories);

// The options of the model `name`. `reserved_bytes`: as CpuBackendOptions. Errors:
// INVALID_ARGUMENT (weights).
absl::StatusOr<CpuBackendOptions> CpuOptionsOf(const ServerConfig& config, absl::string_view name,
                                               int64_t reserved_bytes);

// The fault of a start for `status`, an error of the CUDA backend: OK if the CPU serves instead.
absl::Status CudaFault(const ServerConfig& config, const absl::Status& status);

// A warning of a start: clients reach an address beyond loopback with keys in clear text, or
// without keys.
struct AddressWarning {
  bool has_keys;  // keys cross the network in clear text
  const char* setting;
  std::string address, reason;
};
std::vector<AddressWarning> AddressWarnings(const ServerConfig& config);

}  // namespace rivulet
