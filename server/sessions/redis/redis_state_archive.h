// SPDX-License-Identifier: Apache-2.0
// The states that replicas share, in Redis.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/sessions/redis/redis_url.h"
#include "server/sessions/replicated/state_archive.h"

namespace rivulet {

// In the Redis that `options` names, over a connection of its own, so that claims of sessions do
// not wait behind states. All states take at most half of Redis' maxmemory, even if `limits` say
// more, so that they leave room for sessions; if Redis is full all the same, states are dropped.
// Keys, behind the prefix: "t:NAME" a hash with the pieces of a state, each of 1 MiB at most;
// "states" a sorted set of "BYTES NAME" by the milliseconds since 1970 at which they expire. The
// user needs, beside what a session store needs, +hset +hget +hmget +hlen +unlink. Errors: as
// OpenRedisSessionStore.
absl::StatusOr<std::unique_ptr<StateArchive>> OpenRedisStateArchive(
    const RedisOptions& options, const StateArchiveLimits& limits);

}  // namespace rivulet
