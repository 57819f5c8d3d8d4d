// SPDX-License-Identifier: Apache-2.0
// The setting otlp-endpoint: where a collector of traces is.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

struct OtlpEndpoint {
  std::string target;  // HOST:PORT; an IPv6 address in brackets
  bool tls = false;
};

// Reads "http://HOST[:PORT]" (plaintext) or "https://HOST[:PORT]" (TLS), as OpenTelemetry writes
// the endpoints of OTLP over gRPC; the port is 4317 unless given. Errors: INVALID_ARGUMENT, which
// names the setting, its value and what is allowed.
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(absl::string_view text);

}  // namespace rivulet
