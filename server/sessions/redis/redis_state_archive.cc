// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_state_archive.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "server/base/mutex.h"
#include "server/sessions/redis/redis_connection.h"
#include "server/sessions/redis/redis_scripts.h"
#include "server/sessions/replicated/check_write.h"

namespace rivulet {
namespace {

// Bytes in one command: Redis does nothing else meanwhile.
constexpr size_t kPieceBytes = size_t{1} << 20;

// KEYS: states, a state. ARGV: name, bytes, most bytes, most states, expiry in ms, number of
// pieces, the first piece, beginning of all states' keys, writer. Answers 1: the whole state is
// there; 0: the first piece is there, and the others of this writer may follow. An empty first
// piece only asks.
constexpr absl::string_view kPutScript = R"(#!lua
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expiry = ARGV[5]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local there = redis.call('HLEN', KEYS[2]) == ARGV[6] + 2
if not there and ARGV[7] == '' then return 0 end
if not there then
  redis.call('UNLINK', KEYS[2])
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
  redis.call('HSET', KEYS[2], 'pieces', ARGV[6], 'writer', ARGV[9], '0', ARGV[7])
end
local member = ARGV[2] .. ' ' .. ARGV[1]
redis.call('PEXPIRE', KEYS[2], expiry, 'NX')
redis.call('PEXPIRE', KEYS[2], expiry, 'GT')
redis.call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + expiry), member)
redis.call('PEXPIRE', KEYS[1], expiry, 'NX')
redis.call('PEXPIRE', KEYS[1], expiry, 'GT')
return there and 1 or 0
)";

// KEYS: a state. ARGV: number and bytes of a piece, writer. Answers 0: the state was dropped, or
// another replica writes it.
constexpr absl::string_view kPieceScript = R"(#!lua
if redis.call('HGET', KEYS[1], 'writer') ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
)";

// Redis is full: drops half of all states, those that expire first. KEYS: states. ARGV: beginning
// of all states' keys.
constexpr absl::string_view kShrinkScript = R"(#!lua flags=allow-oom
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
for i = 1, math.ceil(#members / 2) do
  redis.call('UNLINK', ARGV[1] .. members[i]:match(' (.*)$'))
  redis.call('ZREM', KEYS[1], members[i])
end
return #members
)";

// Transfers at once: few, so that no piece waits longer than the call-timeout behind others.
constexpr int kMostTransfers = 4;

absl::Status OtherForm() {
  return absl::UnavailableError("Redis gave an answer of another form about a state");
}

// The integer of a reply. Errors: the error of Redis.
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
        most_bytes_(limits.max_bytes),
        connection_(Watched(options),
                    RedisPermissions(
                        prefix_, {"hset 1 a b", "hget 1 a", "hmget 1 a", "hlen 1", "unlink 1"})) {}

  absl::Status AwaitFirstAttempt() { return connection_.AwaitFirstAttempt(); }

  void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) override {
    auto put = std::make_shared<Putting>();
    put->done = std::move(done);
    put->writer = absl::StrCat(absl::Hex(RandomWord()));
    Start([this, put, state = std::move(state), expiry] {
      put->state = state();
      const int64_t most = most_bytes_;
      if (put->state.size <= most) return Begin(put, expiry, most);
      End(put, absl::StatusOr<int64_t>(absl::ResourceExhaustedError(absl::StrCat(
                   "a state of ", put->state.size, " bytes; allowed for all together: ", most))));
    });
  }

  void Get(std::string name, GetDone done) override {
    auto get = std::make_shared<Getting>();
    get->key = KeyOf(name);
    get->done = std::move(done);
    Start([this, get] {
      connection_.Call({"HMGET", get->key, "pieces", "0"},
                       [this, get](const absl::StatusOr<RedisReply>& reply) {
                         if (!reply.ok()) return End(get, reply.status());
                         if (reply->kind == RedisReply::Kind::kError) {
                           return End(get, RedisError(*reply));
                         }
                         if (reply->elements.size() != 2) return End(get, OtherForm());
                         if (!absl::SimpleAtoi(reply->elements[0].text, &get->pieces)) {
                           get->pieces = 0;
                         }
                         Take(get, reply->elements[1]);
                       });
    });
  }

  void Drop(std::string name) override {
    connection_.Call({"UNLINK", KeyOf(name)}, [](const absl::StatusOr<RedisReply>&) {});
  }

 private:
  struct Putting {
    ArchivedState state;
    std::string writer;
    std::string bytes;  // empty until the archive is known to lack them
    size_t sent = 0;
    PutDone done;
  };
  struct Getting {
    std::string key, bytes;
    int64_t pieces = 0, taken = 0;
    GetDone done;
  };

  RedisOptions Watched(RedisOptions options) {
    options.on_connected = [this](const RedisFacts& facts) {
      const auto half = static_cast<int64_t>(facts.max_memory / 2);
      most_bytes_ = half > 0 ? std::min(half, limits_.max_bytes) : limits_.max_bytes;
    };
    options.on_disconnected = nullptr;  // the store of the sessions reports it
    return options;
  }
  std::string KeyOf(absl::string_view name) const { return absl::StrCat(prefix_, "t:", name); }
  std::string StatesKey() const { return absl::StrCat(prefix_, "states"); }

  // Calls `transfer` on the connection's thread, when few other transfers are under way. Each
  // transfer ends with End().
  void Start(std::function<void()> transfer) {
    MutexLock lock(&mutex_);
    if (under_way_ == kMostTransfers) return waiting_.push_back(std::move(transfer));
    ++under_way_;
    connection_.Post(std::move(transfer));
  }
  template <typename Transfer, typename Result>
  void End(const std::shared_ptr<Transfer>& transfer, Result result) {
    transfer->done(std::move(result));
    MutexLock lock(&mutex_);
    if (waiting_.empty()) {
      --under_way_;
      return;
    }
    connection_.Post(std::move(waiting_.front()));
    waiting_.pop_front();
  }

  // Asks whether the state is there, then sends the first piece.
  void Begin(const std::shared_ptr<Putting>& put, absl::Duration expiry, int64_t most) {
    const int64_t size = put->state.size;
    RedisCommand command =
        RedisEval(kPutScript, {StatesKey(), KeyOf(put->state.name)},
                  {put->state.name, std::to_string(size), std::to_string(most),
                   std::to_string(limits_.max_states),
                   std::to_string(std::max<int64_t>(1, StoreMilliseconds(expiry))),
                   std::to_string((static_cast<size_t>(size) + kPieceBytes - 1) / kPieceBytes),
                   put->bytes.substr(0, kPieceBytes), KeyOf(""), put->writer});
    put->sent = std::min(put->bytes.size(), kPieceBytes);
    connection_.Call(std::move(command), [=, this](const absl::StatusOr<RedisReply>& reply) {
      const absl::StatusOr<int64_t> there = Integer(reply);
      if (!there.ok()) return Fail(put, there.status());
      if (*there == 1) return End(put, absl::StatusOr<int64_t>(0));
      if (put->sent > 0) return SendNext(put);
      put->bytes = put->state.bytes();
      Begin(put, expiry, most);
    });
  }

  // Sends one piece after another, so that each piece has the whole call-timeout, and other users
  // of Redis get their turns.
  void SendNext(const std::shared_ptr<Putting>& put) {
    const std::string& bytes = put->bytes;
    if (put->sent == bytes.size()) return End(put, absl::StatusOr<int64_t>(put->state.size));
    RedisCommand command = RedisEval(kPieceScript, {KeyOf(put->state.name)},
                                     {std::to_string(put->sent / kPieceBytes),
                                      bytes.substr(put->sent, kPieceBytes), put->writer});
    put->sent = std::min(bytes.size(), put->sent + kPieceBytes);
    connection_.Call(std::move(command), [this, put](const absl::StatusOr<RedisReply>& reply) {
      const absl::StatusOr<int64_t> there = Integer(reply);
      if (!there.ok()) return Fail(put, there.status());
      if (*there == 0) {
        return End(put, absl::StatusOr<int64_t>(absl::ResourceExhaustedError(
                            "Redis had to drop the state again, or another replica writes it")));
      }
      SendNext(put);
    });
  }

  void Fail(const std::shared_ptr<Putting>& put, const absl::Status& status) {
    if (absl::IsResourceExhausted(status)) {
      connection_.Call(RedisEval(kShrinkScript, {StatesKey()}, {KeyOf("")}),
                       [](const absl::StatusOr<RedisReply>&) {});
    }
    End(put, absl::StatusOr<int64_t>(status));
  }

  void Take(const std::shared_ptr<Getting>& get, const RedisReply& piece) {
    using Result = absl::StatusOr<std::string>;
    if (piece.kind == RedisReply::Kind::kError) return End(get, Result(RedisError(piece)));
    if (piece.kind != RedisReply::Kind::kText || get->pieces <= 0) return End(get, Result(""));
    get->bytes += piece.text;
    if (++get->taken == get->pieces) return End(get, Result(std::move(get->bytes)));
    if (static_cast<int64_t>(get->bytes.size()) > limits_.max_bytes) return End(get, Result(""));
    connection_.Call({"HGET", get->key, std::to_string(get->taken)},
                     [this, get](const absl::StatusOr<RedisReply>& reply) {
                       if (!reply.ok()) return End(get, reply.status());
                       Take(get, *reply);
                     });
  }

  const std::string prefix_;
  const StateArchiveLimits limits_;
  std::atomic<int64_t> most_bytes_;
  Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  RedisConnection connection_;  // last: its thread uses the rest
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateArchive>> OpenRedisStateArchive(
    const RedisOptions& options, const StateArchiveLimits& limits) {
  RIVULET_RETURN_IF_ERROR(CheckRedisOptions(options));
  auto archive = std::make_unique<RedisStateArchive>(options, limits);
  RIVULET_RETURN_IF_ERROR(archive->AwaitFirstAttempt());
  return archive;
}

}  // namespace rivulet
