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
  // Whether the reply is an error with this first word, for example "NOSCRIPT".
  bool IsError(absl::string_view code) const;
};

// A command and its arguments, any bytes. REQUIRES: there is a command.
std::string FormatRedisCommand(const std::vector<std::string>& args);

// Cuts what a server sends into answers. Thread: one.
class RedisReplyReader {
 public:
  // The most memory that an untrusted server may make us use, beside 16 KiB of an unfinished line.
  struct Limits {
    size_t text_bytes = size_t{64} << 20;    // of one text
    size_t reply_bytes = size_t{256} << 20;  // of all texts of an answer
    size_t elements = size_t{1} << 20;       // of an answer, nested arrays included
  };
  explicit RedisReplyReader(const Limits& limits);
  RedisReplyReader() : RedisReplyReader(Limits()) {}
  ~RedisReplyReader();
  RedisReplyReader(const RedisReplyReader&) = delete;
  RedisReplyReader& operator=(const RedisReplyReader&) = delete;

  // Appends bytes that the server sent.
  void Feed(absl::string_view bytes);
  // The next answer; nullopt: it is not complete yet. Errors: UNAVAILABLE: the bytes are not Redis'
  // protocol or exceed the limits; the bytes that follow then have no meaning.
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
