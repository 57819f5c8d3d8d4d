// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

constexpr int kRedisPort = 6379, kSentinelPort = 26379;

absl::Status BadUrl(absl::string_view why) {
  return InvalidField("CONFIG_INVALID", "session-store",
                      absl::StrCat("session-store: ", why,
                                   "; allowed: redis://[USER@]HOST[:PORT][/DATABASE] or "
                                   "redis+sentinel://[USER@]HOST[:PORT][,...]/MASTER[/DATABASE], "
                                   "with TLS rediss:// or rediss+sentinel://"));
}

std::string Quoted(absl::string_view value) {
  return absl::StrCat("\"", absl::CHexEscape(value), "\"");
}

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

bool IsHexDigit(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }

bool IsName(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsNameByte);
}

// Only digits: SimpleAtoi also takes signs and spaces.
bool ReadNumber(absl::string_view text, int* number) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos &&
         absl::SimpleAtoi(text, number);
}

absl::StatusOr<RedisAddress> ReadAddress(absl::string_view text, int default_port) {
  RedisAddress address;
  address.port = default_port;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t end = rest.find(']');
    in6_addr bytes;
    address.host = std::string(rest.substr(0, end));
    if (end == rest.npos || inet_pton(AF_INET6, address.host.c_str(), &bytes) != 1) {
      return BadUrl(absl::StrCat("its host ", Quoted(text), " is no IPv6 address in brackets"));
    }
    rest.remove_prefix(end + 1);
  } else {
    address.host = std::string(rest.substr(0, rest.find(':')));
    if (!IsName(address.host)) {
      return BadUrl(absl::StrCat("its host ", Quoted(address.host),
                                 " is no name and no address; IPv6 needs brackets"));
    }
    rest.remove_prefix(address.host.size());
  }
  if (rest.empty()) return address;
  if (!absl::ConsumePrefix(&rest, ":") || !ReadNumber(rest, &address.port) || address.port < 1 ||
      address.port > 65535) {
    return BadUrl(absl::StrCat("its port ", Quoted(rest), " is not 1 to 65535"));
  }
  return address;
}

absl::StatusOr<std::string> ReadUser(absl::string_view text) {
  if (absl::StrContains(text, ":")) {
    // Any part of it may be a secret, so the error repeats nothing.
    return BadUrl(
        "a password does not belong into the URL; write it into a file of its own and name that "
        "with --session-store-password-file");
  }
  std::string user;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      user += text[i];
      continue;
    }
    const absl::string_view digits = text.substr(i + 1, 2);
    if (digits.size() != 2 || !std::all_of(digits.begin(), digits.end(), IsHexDigit)) {
      return BadUrl("its user has a % that is not followed by two hexadecimal digits");
    }
    user += absl::HexStringToBytes(digits);
    i += 2;
  }
  if (user.empty()) return BadUrl("its user is empty");
  return user;
}

absl::Status ReadPath(absl::string_view text, bool sentinel, RedisUrl* url) {
  std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  if (sentinel) {
    if (!IsName(parts[0])) {
      return BadUrl(
          absl::StrCat("the name of its master is ", Quoted(parts[0]), ", not [A-Za-z0-9._-]+"));
    }
    url->master = std::string(parts[0]);
    parts.erase(parts.begin());
  }
  if (parts.empty() || (parts.size() == 1 && parts[0].empty())) return absl::OkStatus();
  if (parts.size() > 1 || !ReadNumber(parts[0], &url->database)) {
    return BadUrl(absl::StrCat("its database ", Quoted(absl::StrJoin(parts, "/")), " is not 0 to ",
                               std::numeric_limits<int>::max()));
  }
  return absl::OkStatus();
}

absl::Status BadSetting(absl::string_view setting, absl::string_view why) {
  const std::string name = absl::StrCat("session-store-", setting);
  return InvalidField("CONFIG_INVALID", name, absl::StrCat(name, ": ", why));
}

}  // namespace

std::string RedisAddress::ToString() const {
  const bool ipv6 = absl::StrContains(host, ":");
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

absl::StatusOr<RedisUrl> ParseRedisUrl(absl::string_view text) {
  RedisUrl url;
  const size_t scheme_end = text.find("://");
  const absl::string_view scheme = text.substr(0, scheme_end);
  const bool sentinel = absl::EndsWith(scheme, "+sentinel");
  const absl::string_view base = absl::StripSuffix(scheme, "+sentinel");
  if (scheme_end == text.npos || (base != "redis" && base != "rediss")) {
    // Without a scheme the text may be anything, even a password.
    return BadUrl("it begins with no scheme of Redis");
  }
  url.tls = base == "rediss";
  absl::string_view rest = text.substr(scheme_end + 3);
  // The last @ of all, not the last before the first /: a password may hold both characters.
  if (const size_t at = rest.rfind('@'); at != rest.npos) {
    RIVULET_ASSIGN_OR_RETURN(url.user, ReadUser(rest.substr(0, at)));
    rest.remove_prefix(at + 1);
  }
  if (rest.find_first_of("?#") != rest.npos) {
    return BadUrl("it has a ? or #; options are settings of their own");
  }
  const size_t slash = rest.find('/');
  for (const absl::string_view part : absl::StrSplit(rest.substr(0, slash), ',')) {
    RIVULET_ASSIGN_OR_RETURN(RedisAddress address,
                             ReadAddress(part, sentinel ? kSentinelPort : kRedisPort));
    url.addresses.push_back(std::move(address));
  }
  if (!sentinel && url.addresses.size() > 1) {
    return BadUrl("it has several hosts, which only Sentinels may be");
  }
  RIVULET_RETURN_IF_ERROR(ReadPath(
      slash == rest.npos ? absl::string_view("") : rest.substr(slash + 1), sentinel, &url));
  return url;
}

absl::Status CheckRedisOptions(const RedisOptions& options) {
  const auto needs = [](absl::string_view setting, const std::string& value,
                        const std::string& other, absl::string_view needed) {
    if (value.empty() || !other.empty()) return absl::OkStatus();
    return BadSetting(setting, absl::StrCat("is \"", value, "\", and needs ", needed));
  };
  if (options.url.addresses.empty()) return BadUrl("it has no host");
  if (!options.url.user.empty() && options.password_file.empty()) {
    return BadSetting("password-file", "is not given, and the URL names a user");
  }
  RIVULET_RETURN_IF_ERROR(needs("sentinel-user", options.sentinel_user,
                                options.sentinel_password_file,
                                "session-store-sentinel-password-file"));
  RIVULET_RETURN_IF_ERROR(needs("sentinel-password-file", options.sentinel_password_file,
                                options.url.master, "a URL with redis+sentinel://"));
  const std::string tls = options.url.tls ? "yes" : "";
  const std::pair<absl::string_view, const std::string&> of_tls[] = {
      {"ca", options.ca_file},
      {"cert", options.cert_file},
      {"key", options.key_file},
      {"server-name", options.server_name}};
  for (const auto& [setting, value] : of_tls) {
    RIVULET_RETURN_IF_ERROR(needs(setting, value, tls, "TLS, a URL with rediss://"));
  }
  RIVULET_RETURN_IF_ERROR(needs("cert", options.cert_file, options.key_file, "session-store-key"));
  RIVULET_RETURN_IF_ERROR(needs("key", options.key_file, options.cert_file, "session-store-cert"));
  const std::pair<absl::string_view, absl::Duration> timeouts[] = {
      {"connect-timeout", options.connect_timeout}, {"call-timeout", options.call_timeout}};
  for (const auto& [setting, value] : timeouts) {
    if (value >= absl::Milliseconds(1) && value <= absl::Hours(1)) continue;
    return BadSetting(
        setting, absl::StrCat("is ", absl::FormatDuration(value), "; allowed are 1 ms to 1 h"));
  }
  return absl::OkStatus();
}

}  // namespace rivulet
