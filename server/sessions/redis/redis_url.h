// SPDX-License-Identifier: Apache-2.0
// Where a Redis is, and how to talk to it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rivulet {

struct RedisAddress {
  std::string host;  // a name or an address; IPv6 without brackets
  int port = 0;

  bool operator==(const RedisAddress&) const = default;
  std::string ToString() const;  // HOST:PORT, IPv6 in brackets
};

struct RedisUrl {
  bool tls = false;  // to Redis and to Sentinels
  // One address, of Redis; with `master`: the Sentinels, which know where Redis is.
  std::vector<RedisAddress> addresses;
  std::string master;  // Redis' name at the Sentinels; "": no Sentinel
  std::string user;    // of Redis; "": its user "default"
  int database = 0;
};

// Reads one of
//   redis://[USER@]HOST[:PORT][/DATABASE]                                       port 6379
//   redis+sentinel://[USER@]HOST[:PORT][,HOST[:PORT]...]/MASTER[/DATABASE]      port 26379
// and the same with rediss instead of redis, for TLS. An IPv6 address is in brackets, characters of
// USER may be percent-encoded. Errors: INVALID_ARGUMENT (CONFIG_INVALID, session-store), which name
// the part, its value and what is allowed. A password is refused, and no error repeats it.
absl::StatusOr<RedisUrl> ParseRedisUrl(absl::string_view text);

// What a Redis server reports about itself after connecting.
struct RedisFacts {
  std::string address;  // HOST:PORT
  std::string version;
  // The most memory of Redis, in bytes (0: no limit), and its policy at the limit. All policies but
  // "noeviction" delete sessions that are in use.
  uint64_t max_memory = 0;
  std::string max_memory_policy;
  // Without its append-only file a crash of Redis loses all writes since its last snapshot, or
  // everything if it makes no snapshots (which it does not tell a user without rights).
  bool append_only_file = false;
};

// In errors, settings have the names below, behind "session-store-".
struct RedisOptions {
  RedisUrl url;
  // Files are read for each new connection, so that others may replace them. A password ends at the
  // end of the file's first line.
  std::string password_file;           // password-file: of url.user; "": no AUTH
  std::string sentinel_user;           // sentinel-user: "": their user "default"
  std::string sentinel_password_file;  // sentinel-password-file: "": no AUTH
  std::string ca_file;                 // ca: PEM; "": the system's authorities
  std::string cert_file, key_file;     // cert, key: PEM, ours; "": none
  // server-name: the name that certificates of Redis and of Sentinels must have; "": the host that
  // was connected to, which with Sentinels is the address that they announce.
  std::string server_name;
  std::string key_prefix = "rivulet:";  // key-prefix: of all keys in Redis
  // connect-timeout: of finding an address by name, and of TCP and TLS to each address;
  // call-timeout: of everything else, each time.
  absl::Duration connect_timeout = absl::Seconds(1);
  absl::Duration call_timeout = absl::Seconds(1);
  // After this time without a call, Redis is asked for its time, to notice that it hangs.
  absl::Duration idle_time = absl::Seconds(10);
  // If Redis cannot be reached at first, OpenRedisSessionStore fails, too.
  bool must_be_reachable = false;
  // Limits on the calls that have not ended, and on their bytes.
  int64_t most_calls = 16384;
  int64_t most_bytes = int64_t{64} << 20;
  // Called on the store's thread, where they must not block: when it has connected; and when the
  // connection is lost or cannot be made, once for each message in a row.
  std::function<void(const RedisFacts&)> on_connected;
  std::function<void(const absl::Status&)> on_disconnected;
};

// Errors: INVALID_ARGUMENT (CONFIG_INVALID), which name the setting: values that do not fit
// together. Files are not read.
absl::Status CheckRedisOptions(const RedisOptions& options);

}  // namespace rivulet
