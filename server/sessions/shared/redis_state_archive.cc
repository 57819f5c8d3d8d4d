// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/sessions/shared/check_write.h"
#include "server/sessions/shared/redis_connection.h"
#include "server/sessions/shared/redis_scripts.h"
#include "server/sessions/shared/state_archive.h"

namespace rivulet {
namespace {

// Of one command: Redis does nothing else meanwhile.
constexpr size_t kPieceBytes = size_t{1} << 20;

// KEYS: states, a state. ARGV: name, bytes, most bytes, most states, expiry in ms, number of
// pieces, the first piece, beginning of all states' keys. Answers 1: all of it is there; 0: the
// first piece is, and the others may follow.
constexpr absl::string_view kPutScript = R"(#!lua
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expiry = ARGV[5]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local there = redis.call('HLEN', KEYS[2]) == ARGV[6] + 1
if not there then
  local total, states = tonumber(ARGV[2]), 1
  local members = redis.call('ZRANGE', KEYS[1], 0, -1)
  for _, member in ipairs(members) do
    total = total + member:match('^%d+')
    states = states + 1
  end
  for _, member in ipairs(members) do
    if total <= tonumber(ARGV[3]) and states <= tonumber(ARGV[4]) then break end
    redis.call('UNLINK', ARGV[8] .. member:match(' (.*)$'))
    redis.call('ZREM', KEYS[1], member)
    total = total - member:match('^%d+')
    states = states - 1
  end
  redis.call('HSET', KEYS[2], 'pieces', ARGV[6], '0', ARGV[7])
end
redis.call('PEXPIRE', KEYS[2], expiry)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + expiry), ARGV[2] .. ' ' .. ARGV[1])
redis.call('PEXPIRE', KEYS[1], expiry, 'NX')
redis.call('PEXPIRE', KEYS[1], expiry, 'GT')
return there and 1 or 0
)";

// KEYS: a state. ARGV: number and bytes of a piece. Answers 0: the state was dropped meanwhile.
constexpr absl::string_view kPieceScript = R"(#!lua
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
)";

absl::Status OtherForm() {
  return absl::UnavailableError("Redis gave an answer of another form about a state");
}

// The integer of a reply. Errors: that of Redis.
absl::StatusOr<int64_t> Integer(const absl::StatusOr<RedisReply>& reply) {
  if (!reply.ok()) return reply.status();
  if (reply->kind == RedisReply::Kind::kError) return RedisError(*reply);
  if (reply->kind != RedisReply::Kind::kInteger) return OtherForm();
  return reply->integer;
}

class RedisStateArchive final : public StateArchive {
 public:
  RedisStateArchive(const RedisOptions& options, const StateArchiveLimits& limits)
      : prefix_(options.key_prefix),
        limits_(limits),
        connection_(options, RedisPermissions(prefix_, {"hset 1 a b", "hget 1 a", "hmget 1 a",
                                                        "hlen 1", "unlink 1"})) {}

  absl::Status AwaitFirstAttempt() { return connection_.AwaitFirstAttempt(); }

  void Put(std::string name, std::function<std::string()> bytes, absl::Duration expiry,
           PutDone done) override {
    auto put = std::make_shared<Putting>();
    put->name = std::move(name);
    put->done = std::move(done);
    connection_.Post([this, put, bytes = std::move(bytes), expiry] {
      put->bytes = bytes();
      Begin(put, expiry);
    });
  }

  void Get(std::string name, GetDone done) override {
    auto get = std::make_shared<Getting>();
    get->key = KeyOf(name);
    get->done = std::move(done);
    connection_.Call({"HMGET", get->key, "pieces", "0"},
                     [this, get](absl::StatusOr<RedisReply> reply) {
                       if (!reply.ok()) return get->done(reply.status());
                       if (reply->kind == RedisReply::Kind::kError) {
                         return get->done(RedisError(*reply));
                       }
                       if (reply->elements.size() != 2) return get->done(OtherForm());
                       if (!absl::SimpleAtoi(reply->elements[0].text, &get->pieces))
                         get->pieces = 0;
                       Take(get, std::move(reply->elements[1]));
                     });
  }

 private:
  struct Putting {
    std::string name, bytes;
    size_t sent = 0;
    PutDone done;
  };
  struct Getting {
    std::string key, bytes;
    int64_t pieces = 0, taken = 0;
    GetDone done;
  };

  std::string KeyOf(absl::string_view name) const { return absl::StrCat(prefix_, "t:", name); }

  void Begin(const std::shared_ptr<Putting>& put, absl::Duration expiry) {
    const size_t size = put->bytes.size();
    if (size > static_cast<size_t>(limits_.max_bytes)) {
      return put->done(absl::ResourceExhaustedError(absl::StrCat(
          "a state of ", size, " bytes; allowed for all together: ", limits_.max_bytes)));
    }
    RedisCommand command =
        RedisEval(kPutScript, {absl::StrCat(prefix_, "states"), KeyOf(put->name)},
                  {put->name, std::to_string(size), std::to_string(limits_.max_bytes),
                   std::to_string(limits_.max_states),
                   std::to_string(std::max<int64_t>(1, StoreMilliseconds(expiry))),
                   std::to_string((size + kPieceBytes - 1) / kPieceBytes),
                   put->bytes.substr(0, kPieceBytes), KeyOf("")});
    put->sent = std::min(size, kPieceBytes);
    connection_.Call(std::move(command), [this, put](const absl::StatusOr<RedisReply>& reply) {
      const absl::StatusOr<int64_t> there = Integer(reply);
      if (!there.ok() || *there == 1) return put->done(there.status());
      SendNext(put);
    });
  }

  // One piece after another, so that each has the call-timeout for itself, and other users of Redis
  // get their turns.
  void SendNext(const std::shared_ptr<Putting>& put) {
    if (put->sent == put->bytes.size()) return put->done(absl::OkStatus());
    RedisCommand command = RedisEval(
        kPieceScript, {KeyOf(put->name)},
        {std::to_string(put->sent / kPieceBytes), put->bytes.substr(put->sent, kPieceBytes)});
    put->sent = std::min(put->bytes.size(), put->sent + kPieceBytes);
    connection_.Call(std::move(command), [this, put](const absl::StatusOr<RedisReply>& reply) {
      const absl::StatusOr<int64_t> there = Integer(reply);
      if (!there.ok()) return put->done(there.status());
      if (*there == 0) {
        return put->done(absl::ResourceExhaustedError("Redis had to drop the state again"));
      }
      SendNext(put);
    });
  }

  void Take(const std::shared_ptr<Getting>& get, RedisReply piece) {
    if (piece.kind == RedisReply::Kind::kError) return get->done(RedisError(piece));
    if (piece.kind != RedisReply::Kind::kText || get->pieces <= 0) return get->done("");
    get->bytes += piece.text;
    if (++get->taken == get->pieces) return get->done(std::move(get->bytes));
    if (get->bytes.size() > static_cast<size_t>(limits_.max_bytes)) return get->done("");
    connection_.Call({"HGET", get->key, std::to_string(get->taken)},
                     [this, get](absl::StatusOr<RedisReply> reply) {
                       if (!reply.ok()) return get->done(reply.status());
                       Take(get, *std::move(reply));
                     });
  }

  const std::string prefix_;
  const StateArchiveLimits limits_;
  RedisConnection connection_;  // last: its thread uses the rest
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateArchive>> OpenRedisStateArchive(
    const RedisOptions& options, const StateArchiveLimits& limits) {
  RIVULET_RETURN_IF_ERROR(CheckRedisOptions(options));
  auto archive = std::make_unique<RedisStateArchive>(options, limits);
  const absl::Status attempt = archive->AwaitFirstAttempt();
  const bool refused = !attempt.ok() && !absl::IsUnavailable(attempt);
  if (refused || (!attempt.ok() && options.must_be_reachable)) return attempt;
  return archive;
}

}  // namespace rivulet
