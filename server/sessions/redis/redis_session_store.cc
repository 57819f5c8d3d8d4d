// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_session_store.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "server/sessions/redis/redis_connection.h"
#include "server/sessions/redis/redis_scripts.h"
#include "server/sessions/replicated/check_write.h"

namespace rivulet {
namespace {

// Chunks in one command; a chunk has some 264 KiB at most. The next command is sent when the last
// is answered, so that each command has the whole call-timeout.
constexpr size_t kChunksAtOnce = 16;
constexpr int64_t kMembersAtOnce = 10000;

std::string NewId() {
  return absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16),
                      absl::Hex(RandomWord(), absl::kZeroPad16));
}

class RedisSessionStore final : public SessionStore {
 public:
  explicit RedisSessionStore(const RedisOptions& options)
      : prefix_(options.key_prefix), connection_(options, RedisPermissions(prefix_)) {}

  absl::Status AwaitFirstAttempt() { return connection_.AwaitFirstAttempt(); }

  void Write(StoreWrite write, Done done) override {
    absl::Status checked = CheckWrite(write);
    if (!checked.ok()) {
      return connection_.Post(
          [done = std::move(done), checked = std::move(checked)] { done(checked); });
    }
    connection_.Call(RedisWrite(prefix_, std::move(write), NewId()),
                     Answered(std::move(done), false));
  }

  void Read(std::string session, Done done) override {
    connection_.Call(RedisRead(prefix_, session, NewId()), Answered(std::move(done), true));
  }

  void ReadChunks(std::vector<std::string> ids, ChunksDone done) override {
    auto reading = std::make_shared<Reading>();
    reading->ids = std::move(ids);
    reading->done = std::move(done);
    if (!reading->ids.empty()) return ReadNext(std::move(reading));
    connection_.Post([reading] { reading->done(std::vector<std::string>()); });
  }

  void List(std::string set, int64_t after_ms, int64_t count, MembersDone done) override {
    auto listing = std::make_shared<Listing>();
    listing->set = std::move(set);
    listing->count = count;
    listing->done = std::move(done);
    if (count <= 0) return connection_.Post([listing] { listing->done(std::vector<Member>()); });
    ListNext(std::move(listing), after_ms);
  }

  std::optional<bool> connected() const override { return connection_.connected(); }

 private:
  struct Reading {
    std::vector<std::string> ids, chunks;
    ChunksDone done;
  };
  struct Listing {
    std::string set;
    int64_t count = 0;
    std::vector<Member> members;
    MembersDone done;
  };

  static RedisConnection::Done Answered(Done done, bool of_read) {
    return [done = std::move(done), of_read](const absl::StatusOr<RedisReply>& reply) {
      done(reply.ok() ? ReadStoreAnswer(*reply, of_read) : reply.status());
    };
  }

  void ReadNext(std::shared_ptr<Reading> reading) {
    const size_t begin = reading->chunks.size();
    const size_t end = std::min(begin + kChunksAtOnce, reading->ids.size());
    RedisCommand command = RedisReadChunks(prefix_, reading->ids, begin, end);
    connection_.Call(std::move(command), [this, reading = std::move(reading),
                                          count = end - begin](absl::StatusOr<RedisReply> reply) {
      if (!reply.ok()) return reading->done(reply.status());
      absl::StatusOr<std::vector<std::string>> chunks = ReadChunksAnswer(*std::move(reply), count);
      if (!chunks.ok()) return reading->done(chunks.status());
      std::move(chunks->begin(), chunks->end(), std::back_inserter(reading->chunks));
      if (reading->chunks.size() < reading->ids.size()) return ReadNext(reading);
      reading->done(std::move(reading->chunks));
    });
  }

  void ListNext(std::shared_ptr<Listing> listing, int64_t after_ms) {
    const int64_t left = listing->count - static_cast<int64_t>(listing->members.size());
    const int64_t count = std::clamp<int64_t>(left, 1, kMembersAtOnce);
    RedisCommand command = RedisList(prefix_, listing->set, after_ms, count);
    connection_.Call(std::move(command), [this, listing = std::move(listing),
                                          count](const absl::StatusOr<RedisReply>& reply) {
      if (!reply.ok()) return listing->done(reply.status());
      absl::StatusOr<std::vector<Member>> page = ReadMembersAnswer(*reply);
      if (!page.ok()) return listing->done(page.status());
      const bool more = static_cast<int64_t>(page->size()) >= count;
      std::move(page->begin(), page->end(), std::back_inserter(listing->members));
      const auto members = static_cast<int64_t>(listing->members.size());
      if (more && members < listing->count) {
        return ListNext(listing, listing->members.back().expires_ms);
      }
      listing->done(std::move(listing->members));
    });
  }

  const std::string prefix_;
  RedisConnection connection_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SessionStore>> OpenRedisSessionStore(const RedisOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckRedisOptions(options));
  auto store = std::make_unique<RedisSessionStore>(options);
  RIVULET_RETURN_IF_ERROR(store->AwaitFirstAttempt());
  return store;
}

}  // namespace rivulet
