// SPDX-License-Identifier: Apache-2.0
// A SessionStore in Redis 7.0 or later, or Valkey: one server, or a master that Sentinels name.
//
// An answered write is as safe as Redis: after a crash, Redis with its append-only file may have
// lost up to a second of writes (appendfsync everysec), and after a failover the writes that had
// not reached the new master. The store then has an older record with its older claim.
//
// The user needs the keys ~PREFIX* and these commands:
//   +info +eval +time +get +set +mget +exists +pexpire
//   +zadd +zcount +zrange +zrem +zremrangebyscore +zscore
// and +select with a database other than 0.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/sessions/redis/redis_url.h"
#include "server/sessions/replicated/session_store.h"

namespace rivulet {

// Starts to connect, and waits for the first attempt to end. Redis that cannot be reached now is no
// error unless options.must_be_reachable: the store keeps trying, with pauses of 50 ms to 2 s.
// Errors: INVALID_ARGUMENT (CONFIG_INVALID; an option, a file), FAILED_PRECONDITION
// (SESSION_STORE_REFUSED; version, cluster mode, password, rights, certificate), UNAVAILABLE
// (must_be_reachable). Messages of these and of calls name addresses and settings: they are for
// operators, not for clients.
absl::StatusOr<std::unique_ptr<SessionStore>> OpenRedisSessionStore(const RedisOptions& options);

}  // namespace rivulet
