// SPDX-License-Identifier: Apache-2.0
// The commands that RedisSessionStore sends to Redis, and how it reads the answers.
//
// Keys, behind the prefix: "id" the store's id; "s:SESSION" a record; "c:CHUNK" a chunk; "m:SET" a
// sorted set of sessions by the milliseconds since 1970 at which they expire; "a:ACCOUNT" and
// "b:ACCOUNT" two sorted sets of the records and chunks that count for an account, by the time of
// their expiry and by their bytes. All but the id expire.
//
// A script is sent whole each time (EVAL), two kilobytes. With EVALSHA, a call whose script Redis
// has forgotten would have to be sent again, behind later calls.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/sessions/redis/redis_reply.h"
#include "server/sessions/replicated/session_store.h"

namespace rivulet {

using RedisCommand = std::vector<std::string>;

constexpr size_t kClaimBytes = 16;

// `new_id`: the store's new id, if it has none. REQUIRES: CheckWrite is OK.
RedisCommand RedisWrite(const std::string& prefix, StoreWrite write, const std::string& new_id);
RedisCommand RedisRead(const std::string& prefix, const std::string& session,
                       const std::string& new_id);
// REQUIRES: ids [begin, end) exist; one or more.
RedisCommand RedisReadChunks(const std::string& prefix, const std::vector<std::string>& ids,
                             size_t begin, size_t end);
// REQUIRES: count >= 1.
RedisCommand RedisList(const std::string& prefix, const std::string& set, int64_t after_ms,
                       int64_t count);
// Lists the commands above that the user may not call on keys with the prefix. `more`: further
// commands, each with its arguments, in which 1 and 2 stand for keys.
RedisCommand RedisPermissions(const std::string& prefix, std::vector<std::string> more = {});

RedisCommand RedisEval(absl::string_view script, std::vector<std::string> keys,
                       std::vector<std::string> args);
// The error of a store for an error of Redis. REQUIRES: `error` is an error.
absl::Status RedisError(const RedisReply& error);

// Answers; `reply` may be anything. Errors: as SessionStore. `of_read`: to RedisRead, otherwise to
// RedisWrite.
absl::StatusOr<StoreAnswer> ReadStoreAnswer(const RedisReply& reply, bool of_read);
absl::StatusOr<std::vector<std::string>> ReadChunksAnswer(RedisReply reply, size_t count);
absl::StatusOr<std::vector<SessionStore::Member>> ReadMembersAnswer(const RedisReply& reply);

}  // namespace rivulet
