// SPDX-License-Identifier: Apache-2.0
// Commands and answers of Redis as bytes: protocol RESP2, read and written with hiredis.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct redisReader;

namespace rivulet {

struct RedisReply {
  enum class Kind : uint8_t { kNil, kText, kInteger, kArray, kError };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;                  // of kText and kError
  std::vector<RedisReply> elements;  // of kArray

  bool IsText(absl::string_view value) const { return kind == Kind::kText && text == value; }
  // Whether it is the error with this first word, for example "NOSCRIPT".
  bool IsError(absl::string_view code) const;
};

// A command and its arguments, any bytes. REQUIRES: there is a command.
std::string FormatRedisCommand(const std::vector<std::string>& args);

// Cuts what a server sends into answers. Thread: one.
class RedisReplyReader {
 public:
  // What a server that we cannot trust may make us hold, beside 16 KiB of an unfinished line.
  struct Limits {
    size_t text_bytes = size_t{64} << 20;    // of one text
    size_t reply_bytes = size_t{256} << 20;  // of all texts of an answer
    size_t elements = size_t{1} << 20;       // of an answer, those of nested arrays included
  };
  explicit RedisReplyReader(const Limits& limits);
  RedisReplyReader() : RedisReplyReader(Limits()) {}
  ~RedisReplyReader();
  RedisReplyReader(const RedisReplyReader&) = delete;
  RedisReplyReader& operator=(const RedisReplyReader&) = delete;

  // Appends what the server sent.
  void Feed(absl::string_view bytes);
  // The next answer; nothing: it has not come whole. Errors: UNAVAILABLE, this is not Redis'
  // protocol or more than the limits; then nothing that follows has a meaning.
  absl::StatusOr<std::optional<RedisReply>> Next();

 private:
  struct Building;
  struct Free {
    void operator()(redisReader* reader) const;
  };

  const Limits limits_;
  std::unique_ptr<Building> building_;
  std::unique_ptr<redisReader, Free> reader_;  // uses building_
};

}  // namespace rivulet
