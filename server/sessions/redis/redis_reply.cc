// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_reply.h"

#include <hiredis/hiredis.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr size_t kLineBytes = size_t{16} << 10;  // a number, a status or an error

}  // namespace

// The answer that hiredis is reading: it calls the functions below for each part.
struct RedisReplyReader::Building {
  explicit Building(const Limits& most) : limits(most) {}

  // The place for the part of `task`; nullptr: too deep, too many.
  RedisReply* Place(const redisReadTask* task) {
    if (task->parent == nullptr) {
      bytes = elements = 0;
      root = RedisReply();
      return &root;
    }
    auto* const parent = static_cast<RedisReply*>(task->parent->obj);
    return &parent->elements[static_cast<size_t>(task->idx)];
  }

  static Building* Of(const redisReadTask* task) { return static_cast<Building*>(task->privdata); }

  // nullptr from any of these ends the reading with an error.
  static void* Text(const redisReadTask* task, char* data, size_t size) {
    Building* const self = Of(task);
    RedisReply* const reply = self->Place(task);
    self->bytes += size;
    if (size > self->limits.text_bytes || self->bytes > self->limits.reply_bytes) return nullptr;
    switch (task->type) {
      case REDIS_REPLY_ERROR:
        reply->kind = RedisReply::Kind::kError;
        break;
      case REDIS_REPLY_STRING:
      case REDIS_REPLY_STATUS:
        reply->kind = RedisReply::Kind::kText;
        break;
      default:  // of RESP3, which was not requested
        return nullptr;
    }
    reply->text.assign(data, size);
    return reply;
  }

  // hiredis 1 has another type for `count`.
  template <typename Count>
  static void* Array(const redisReadTask* task, Count count) {
    Building* const self = Of(task);
    RedisReply* const reply = self->Place(task);
    int depth = 0;
    for (const redisReadTask* above = task->parent; above != nullptr; above = above->parent) {
      ++depth;
    }
    self->elements += static_cast<size_t>(count);
    if (task->type != REDIS_REPLY_ARRAY || depth > kMostDepth ||
        static_cast<size_t>(count) > self->limits.elements ||
        self->elements > self->limits.elements) {
      return nullptr;
    }
    reply->kind = RedisReply::Kind::kArray;
    reply->elements.resize(static_cast<size_t>(count));
    return reply;
  }

  // hiredis 1.0.1 and later; long long: 0.14.
  template <typename Integer>
  static void* Number(const redisReadTask* task, Integer value) {
    RedisReply* const reply = Of(task)->Place(task);
    reply->kind = RedisReply::Kind::kInteger;
    reply->integer = value;
    return reply;
  }

  static void* Nil(const redisReadTask* task) { return Of(task)->Place(task); }

  static void Drop(void*) {}  // `root` owns all

  // Functions for RESP3, which hiredis 0.14 does not have.
  template <typename Functions>
  static void RefuseResp3(Functions* functions) {
    if constexpr (requires { functions->createDouble; }) {
      functions->createDouble = [](const redisReadTask*, double, char*, size_t) -> void* {
        return nullptr;
      };
      functions->createBool = [](const redisReadTask*, int) -> void* { return nullptr; };
    }
  }

  static redisReplyObjectFunctions* Functions() {
    static redisReplyObjectFunctions functions = [] {
      redisReplyObjectFunctions made = {};
      made.createString = &Text;
      made.createArray = &Array;
      made.createInteger = &Number;
      made.createNil = &Nil;
      made.freeObject = &Drop;
      RefuseResp3(&made);
      return made;
    }();
    return &functions;
  }

  static constexpr int kMostDepth = 4;
  const Limits limits;
  RedisReply root;
  size_t bytes = 0, elements = 0;  // of root so far
};

bool RedisReply::IsError(absl::string_view code) const {
  return kind == Kind::kError && absl::StartsWith(text, code) &&
         (text.size() == code.size() || text[code.size()] == ' ');
}

std::string FormatRedisCommand(const std::vector<std::string>& args) {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  data.reserve(args.size());
  sizes.reserve(args.size());
  for (const std::string& arg : args) {
    data.push_back(arg.data());
    sizes.push_back(arg.size());
  }
  char* bytes = nullptr;
  const auto size =
      redisFormatCommandArgv(&bytes, static_cast<int>(args.size()), data.data(), sizes.data());
  if (size < 0) std::abort();  // as operator new does: no memory
  std::string command(bytes, static_cast<size_t>(size));
  redisFreeCommand(bytes);
  return command;
}

RedisReplyReader::RedisReplyReader(const Limits& limits)
    : limits_(limits),
      building_(std::make_unique<Building>(limits)),
      reader_(redisReaderCreateWithFunctions(Building::Functions())) {
  if (reader_ == nullptr) std::abort();
  reader_->privdata = building_.get();
}

RedisReplyReader::~RedisReplyReader() = default;

void RedisReplyReader::Free::operator()(redisReader* reader) const { redisReaderFree(reader); }

void RedisReplyReader::Feed(absl::string_view bytes) {
  // An error stays in the reader: Next returns it.
  if (!bytes.empty()) redisReaderFeed(reader_.get(), bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<RedisReply>> RedisReplyReader::Next() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
    return absl::UnavailableError(reader_->err == REDIS_ERR_OOM
                                      ? "the answer is larger than allowed, or of another protocol"
                                      : absl::StrCat("this is not the protocol of Redis: ",
                                                     absl::CHexEscape(reader_->errstr)));
  }
  if (reply != nullptr) return std::exchange(building_->root, RedisReply());
  // hiredis keeps a text until it is whole. It searches a line from its beginning each time.
  const absl::string_view kept(reader_->buf + reader_->pos, reader_->len - reader_->pos);
  if (kept.size() > kLineBytes && kept.substr(0, kLineBytes).find("\r\n") == kept.npos) {
    return absl::UnavailableError(
        absl::StrCat("the answer has a line of more than ", kLineBytes, " bytes"));
  }
  if (kept.size() > limits_.text_bytes + (size_t{1} << 20)) {
    return absl::UnavailableError("the answer is larger than allowed");
  }
  return std::nullopt;
}

}  // namespace rivulet
