// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_scripts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "server/sessions/replicated/check_write.h"

namespace rivulet {
namespace {

// A record in Redis: this, its claim, when its lease ends (milliseconds since 1970, 16 digits; 0:
// it has none), its bytes. One value, so that it expires and is replaced as a whole.
constexpr absl::string_view kRecordMagic = "rvs1";
constexpr size_t kLeaseDigits = 16;
constexpr size_t kRecordHead = kRecordMagic.size() + kClaimBytes + kLeaseDigits;

// Redis carries out a script as a whole. With "#!lua" it checks before the script begins whether
// memory, disk and role allow writes: a script that has begun is not refused halfway. Keys of
// another type end the script at the reads, which come first. A write can still fail (somebody
// takes a right away), so the record is written after everything that it needs, and before it
// leaves its sets.
//
// allow-oom, for a write that ends a session: a tombstone takes no more memory than the record
// before it, and sessions must be closable in a full Redis.
constexpr absl::string_view kOfWrite = "#!lua\n", kOfEnd = "#!lua flags=allow-oom\n";
// KEYS: id, record, sets, new chunks, kept chunks, dropped chunks. ARGV: expected claim, claim,
// lease in ms, expiry in ms, session, new id, whether it leaves its sets, number of sets, number of
// new chunks, number of dropped chunks, bytes of the record, then the most members of each set,
// then the bytes of each new chunk; last the most bytes of the account, 0 for no limit. With an
// account, its two sets are the last keys: the keys that count for it, by time of expiry and by
// their bytes, with the sum of all for "". Expired keys leave both sets at the next write, at most
// 1,000 at a time. A server of the previous version counts nothing, so its writes are missing.
static_assert(kStoreEntryBytes == 256);  // as the script has it
constexpr absl::string_view kWriteScript = R"(
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expected, claim, expiry, session = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local leaves, sets, chunks = ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])
local last = #ARGV > 11 + sets + chunks and #KEYS - 2 or #KEYS
local used, expiries, sizes = last - ARGV[10], KEYS[last + 1], KEYS[last + 2]
local function size(key) return tonumber(redis.call('ZSCORE', sizes, key) or 0) end
local total = 0
local function change(key, bytes)
  total = total + bytes - size(key)
  if bytes > 0 then return redis.call('ZADD', sizes, bytes, key) end
  redis.call('ZREM', sizes, key)
  redis.call('ZREM', expiries, key)
end
local function keep_total()
  redis.call('ZADD', sizes, string.format('%.0f', total), '')
end
local id = redis.call('GET', KEYS[1])
local record = redis.call('GET', KEYS[2])
local answer = {0, id, false, now, 0, 0}
if record and (expected == '' or record:sub(5, 20) ~= expected) then
  answer = {1, id, record, now, 0, 0}
elseif not record and expected ~= '' then
  answer = {2, id, false, now, 0, 0}
end
for i = 1, sets do
  local members = redis.call('ZCOUNT', KEYS[2 + i], '(' .. string.format('%.0f', now), '+inf')
  if answer[1] == 0 and not record and not leaves and members >= tonumber(ARGV[11 + i]) then
    local expires = redis.call('ZSCORE', KEYS[2 + i], session)
    if not expires or tonumber(expires) <= now then
      answer = {3, id, false, now, i - 1, members}
    end
  end
end
for i = 3 + sets + chunks, used do
  if answer[1] == 0 and redis.call('EXISTS', KEYS[i]) == 0 then
    answer = {4, id, false, now, 0, 0}
  end
end
if expiries then
  total = size('')
  local expired = redis.call('ZRANGE', expiries, '-inf', string.format('%.0f', now), 'BYSCORE',
                             'LIMIT', 0, 1000)
  for _, key in ipairs(expired) do change(key, 0) end
  if #expired > 0 then keep_total() end
  local more = #ARGV[11] + 256 - size(KEYS[2])
  for i = 1, chunks do more = more + #ARGV[11 + sets + i] + 256 end
  local most = tonumber(ARGV[#ARGV])
  if answer[1] == 0 and most > 0 and total + more > most then
    answer = {5, id, false, now, 0, total}
  end
end
if not id then
  answer[2] = ARGV[6]
  redis.call('SET', KEYS[1], ARGV[6])
end
if answer[1] ~= 0 then return answer end
for i = 3 + sets, used do
  local new = i - 2 - sets
  if new > chunks or not redis.call('SET', KEYS[i], ARGV[11 + sets + new], 'NX', 'PX', expiry) then
    redis.call('PEXPIRE', KEYS[i], expiry, 'GT')
  end
  if expiries and new <= chunks then change(KEYS[i], #ARGV[11 + sets + new] + 256) end
  if expiries and size(KEYS[i]) > 0 then
    redis.call('ZADD', expiries, 'GT', string.format('%.0f', now + expiry), KEYS[i])
  end
end
if not leaves then
  for i = 3, 2 + sets do
    redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', string.format('%.0f', now))
    redis.call('ZADD', KEYS[i], string.format('%.0f', now + expiry), session)
    redis.call('PEXPIRE', KEYS[i], expiry, 'NX')
    redis.call('PEXPIRE', KEYS[i], expiry, 'GT')
  end
end
local lease = string.format('%016.0f', ARGV[3] == '0' and 0 or now + ARGV[3])
redis.call('SET', KEYS[2], 'rvs1' .. claim .. lease .. ARGV[11], 'PX', expiry)
if leaves then
  for i = 3, 2 + sets do redis.call('ZREM', KEYS[i], session) end
end
for i = used + 1, last do
  redis.call('PEXPIRE', KEYS[i], 0)
  if expiries then change(KEYS[i], 0) end
end
if expiries then
  change(KEYS[2], #ARGV[11] + 256)
  redis.call('ZADD', expiries, string.format('%.0f', now + expiry), KEYS[2])
  keep_total()
  for i = last + 1, last + 2 do
    redis.call('PEXPIRE', KEYS[i], expiry, 'NX')
    redis.call('PEXPIRE', KEYS[i], expiry, 'GT')
  end
end
return answer
)";

// allow-oom: it writes nothing but a store's id, once.
constexpr absl::string_view kReadScript = R"(#!lua flags=allow-oom
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = redis.call('GET', KEYS[1])
local record = redis.call('GET', KEYS[2])
if not id then
  id = ARGV[1]
  redis.call('SET', KEYS[1], id)
end
return {record and 0 or 2, id, record, now, 0, 0}
)";

constexpr absl::string_view kListScript = R"(#!lua flags=no-writes
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local low = '(' .. string.format('%.0f', math.max(now, tonumber(ARGV[1])))
local function list(high, ...)
  return redis.call('ZRANGE', KEYS[1], low, high, 'BYSCORE', 'WITHSCORES', ...)
end
local last = list('+inf', 'LIMIT', ARGV[2] - 1, 1)
return list(last[2] or '+inf')
)";

// KEYS: a record, a set. ARGV: commands of the other scripts, and MGET; each with its arguments, in
// which 1 and 2 stand for the keys.
constexpr absl::string_view kPermissionsScript = R"(#!lua flags=no-writes
local lacks = {}
for _, line in ipairs(ARGV) do
  local command = {}
  for word in line:gmatch('%S+') do
    command[#command + 1] = word:find('^[12]$') and KEYS[word + 0] or word
  end
  if not redis.acl_check_cmd(unpack(command)) then lacks[#lacks + 1] = command[1] end
end
return lacks
)";
constexpr const char* kPermissions[] = {"time",         "get 1",        "set 1 x",
                                        "mget 1",       "exists 1",     "pexpire 1 9",
                                        "zcount 2 8 9", "zscore 2 x",   "zadd 2 9 x",
                                        "zrem 2 x",     "zrange 2 8 9", "zremrangebyscore 2 8 9"};

std::string Milliseconds(absl::Duration duration, int64_t least) {
  return std::to_string(std::max(least, StoreMilliseconds(duration)));
}

std::string IdKey(const std::string& prefix) { return absl::StrCat(prefix, "id"); }
std::string RecordKey(const std::string& prefix, absl::string_view session) {
  return absl::StrCat(prefix, "s:", session);
}
std::string ChunkKey(const std::string& prefix, absl::string_view id) {
  return absl::StrCat(prefix, "c:", id);
}
std::string SetKey(const std::string& prefix, absl::string_view name) {
  return absl::StrCat(prefix, "m:", name);
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the session store in Redis ", what));
}

absl::Status ReadRecord(absl::string_view bytes, int64_t now_ms, StoreRecord* record) {
  int64_t lease_ends = 0;
  if (bytes.size() < kRecordHead || !absl::ConsumePrefix(&bytes, kRecordMagic) ||
      !absl::SimpleAtoi(bytes.substr(kClaimBytes, kLeaseDigits), &lease_ends)) {
    return Damaged("has something else where a session's record belongs");
  }
  record->claim = std::string(bytes.substr(0, kClaimBytes));
  record->bytes = std::string(bytes.substr(kClaimBytes + kLeaseDigits));
  record->lease =
      std::max(absl::ZeroDuration(), absl::Milliseconds(lease_ends) - absl::Milliseconds(now_ms));
  return absl::OkStatus();
}

}  // namespace

RedisCommand RedisEval(absl::string_view script, std::vector<std::string> keys,
                       std::vector<std::string> args) {
  RedisCommand command = {"EVAL", std::string(script), std::to_string(keys.size())};
  command.reserve(command.size() + keys.size() + args.size());
  for (std::string& key : keys) command.push_back(std::move(key));
  for (std::string& arg : args) command.push_back(std::move(arg));
  return command;
}

absl::Status RedisError(const RedisReply& error) {
  const std::string said = absl::CHexEscape(absl::string_view(error.text).substr(0, 200));
  if (error.IsError("OOM")) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Redis is full, its maxmemory is too small for the sessions: ", said));
  }
  if (error.IsError("MISCONF")) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Redis cannot write to its disk, so it takes no writes: ", said));
  }
  if (error.IsError("WRONGTYPE")) {
    return Damaged(absl::StrCat("has a key that others use: ", said));
  }
  if (error.IsError("NOPERM") || error.IsError("NOAUTH") || error.IsError("WRONGPASS") ||
      absl::StartsWith(error.text, "ERR The user executing the script")) {
    return absl::UnavailableError(absl::StrCat(
        "the user's rights in Redis were taken away, give them back (ACL SETUSER): ", said));
  }
  return absl::UnavailableError(absl::StrCat("Redis says ", said));
}

RedisCommand RedisWrite(const std::string& prefix, StoreWrite write, const std::string& new_id) {
  const bool ends = write.leaves_sets && write.chunks.empty();
  std::vector<std::string> keys = {IdKey(prefix), RecordKey(prefix, write.session)};
  std::vector<std::string> args = {std::move(write.expected),
                                   std::move(write.record.claim),
                                   Milliseconds(write.record.lease, 0),
                                   Milliseconds(write.expiry, 1),
                                   std::move(write.session),
                                   new_id,
                                   write.leaves_sets ? "1" : "0",
                                   std::to_string(write.sets.size()),
                                   std::to_string(write.chunks.size()),
                                   std::to_string(write.dropped_chunks.size()),
                                   std::move(write.record.bytes)};
  for (const StoreSet& set : write.sets) {
    keys.push_back(SetKey(prefix, set.name));
    args.push_back(std::to_string(set.most));
  }
  for (StoreChunk& chunk : write.chunks) {
    keys.push_back(ChunkKey(prefix, chunk.id));
    args.push_back(std::move(chunk.bytes));
  }
  for (const std::string& id : write.kept_chunks) keys.push_back(ChunkKey(prefix, id));
  for (const std::string& id : write.dropped_chunks) keys.push_back(ChunkKey(prefix, id));
  if (!write.account.name.empty()) {
    keys.push_back(absl::StrCat(prefix, "a:", write.account.name));
    keys.push_back(absl::StrCat(prefix, "b:", write.account.name));
    args.push_back(std::to_string(write.account.most));
  }
  return RedisEval(absl::StrCat(ends ? kOfEnd : kOfWrite, kWriteScript), std::move(keys),
                   std::move(args));
}

RedisCommand RedisRead(const std::string& prefix, const std::string& session,
                       const std::string& new_id) {
  return RedisEval(kReadScript, {IdKey(prefix), RecordKey(prefix, session)}, {new_id});
}

RedisCommand RedisReadChunks(const std::string& prefix, const std::vector<std::string>& ids,
                             size_t begin, size_t end) {
  RedisCommand command = {"MGET"};
  for (size_t i = begin; i < end; ++i) command.push_back(ChunkKey(prefix, ids[i]));
  return command;
}

RedisCommand RedisList(const std::string& prefix, const std::string& set, int64_t after_ms,
                       int64_t count) {
  return RedisEval(kListScript, {SetKey(prefix, set)},
                   {std::to_string(after_ms), std::to_string(count)});
}

RedisCommand RedisPermissions(const std::string& prefix, std::vector<std::string> more) {
  more.insert(more.begin(), std::begin(kPermissions), std::end(kPermissions));
  return RedisEval(kPermissionsScript, {RecordKey(prefix, "x"), SetKey(prefix, "x")},
                   std::move(more));
}

absl::StatusOr<StoreAnswer> ReadStoreAnswer(const RedisReply& reply, bool of_read) {
  if (reply.kind == RedisReply::Kind::kError) return RedisError(reply);
  const std::vector<RedisReply>& parts = reply.elements;
  if (parts.size() != 6 || parts[1].text.empty()) return Damaged("gave an answer of another form");
  StoreAnswer answer;
  answer.store_id = parts[1].text;
  switch (parts[0].integer) {
    case 0:
      break;
    case 1:
      answer.kind = StoreAnswer::Kind::kClaimMismatch;
      break;
    case 2:
      answer.kind = StoreAnswer::Kind::kMissing;
      break;
    case 3:
      answer.kind = StoreAnswer::Kind::kFull;
      answer.full_set = static_cast<size_t>(parts[4].integer);
      answer.members = parts[5].integer;
      break;
    case 4:
      return Damaged("has lost a chunk that the session uses");
    case 5:
      answer.kind = StoreAnswer::Kind::kNoBytes;
      answer.members = parts[5].integer;
      break;
    default:
      return Damaged("gave an answer of another form");
  }
  const bool found = answer.kind == StoreAnswer::Kind::kClaimMismatch ||
                     (answer.kind == StoreAnswer::Kind::kDone && of_read);
  if (found != (parts[2].kind == RedisReply::Kind::kText)) {
    return Damaged("gave an answer of another form");
  }
  if (found) {
    RIVULET_RETURN_IF_ERROR(ReadRecord(parts[2].text, parts[3].integer, &answer.found));
  }
  return answer;
}

absl::StatusOr<std::vector<std::string>> ReadChunksAnswer(RedisReply reply, size_t count) {
  if (reply.kind == RedisReply::Kind::kError) return RedisError(reply);
  if (reply.elements.size() != count) return Damaged("gave an answer of another form");
  std::vector<std::string> chunks;
  chunks.reserve(count);
  for (RedisReply& chunk : reply.elements) chunks.push_back(std::move(chunk.text));
  return chunks;
}

absl::StatusOr<std::vector<SessionStore::Member>> ReadMembersAnswer(const RedisReply& reply) {
  if (reply.kind == RedisReply::Kind::kError) return RedisError(reply);
  if (reply.kind != RedisReply::Kind::kArray || reply.elements.size() % 2 != 0) {
    return Damaged("gave an answer of another form");
  }
  std::vector<SessionStore::Member> members(reply.elements.size() / 2);
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].session = reply.elements[2 * i].text;
    if (!absl::SimpleAtoi(reply.elements[2 * i + 1].text, &members[i].expires_ms)) {
      return Damaged("has a set whose members do not expire at a time");
    }
  }
  return members;
}

}  // namespace rivulet
