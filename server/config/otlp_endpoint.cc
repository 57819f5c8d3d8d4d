// SPDX-License-Identifier: Apache-2.0
#include "server/config/otlp_endpoint.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "server/config/server_config.h"

namespace rivulet {
namespace {

constexpr int kDefaultPort = 4317;

bool IsHostByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ||
         c == ':';
}

}  // namespace

absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(absl::string_view text) {
  const auto invalid = [text](absl::string_view why) {
    return InvalidField("CONFIG_INVALID", "otlp-endpoint",
                        absl::StrCat("otlp-endpoint is \"", text, "\"; ", why,
                                     "; allowed: http://HOST:PORT or, for TLS, https://HOST:PORT"));
  };
  OtlpEndpoint endpoint;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "https://")) {
    endpoint.tls = true;
  } else if (!absl::ConsumePrefix(&rest, "http://")) {
    return invalid("it must begin with http:// or https://");
  }
  absl::ConsumeSuffix(&rest, "/");
  if (absl::StrContains(rest, "/")) {
    return invalid("a path belongs to OTLP over HTTP, which is not supported");
  }
  const bool with_port = rest.rfind(':') != rest.npos && !absl::EndsWith(rest, "]");
  const std::string address = with_port ? std::string(rest) : absl::StrCat(rest, ":", kDefaultPort);
  const auto place = ParseHostPort(address, "otlp-endpoint");
  if (!place.ok() || place->port == 0) {
    return invalid("it needs a host, with an IPv6 address in brackets, and a port of 1 to 65535");
  }
  if (place->host.empty() || !std::all_of(place->host.begin(), place->host.end(), IsHostByte)) {
    return invalid("its host is no name and no address");
  }
  endpoint.target = address;
  return endpoint;
}

}  // namespace rivulet
