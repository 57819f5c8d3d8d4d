// SPDX-License-Identifier: Apache-2.0
// Any bytes as what Redis sends: they are cut into the same answers however they come, and each
// answer, taken for one to any call of the session store, is a documented error of one line or
// values in their ranges. The first byte says how long the pieces are in which the others come.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/sessions/redis/redis_dialer.h"
#include "server/sessions/redis/redis_reply.h"
#include "server/sessions/redis/redis_scripts.h"
#include "tests/fuzz/promise.h"

namespace rivulet {
namespace {

using fuzz::Promise;

constexpr RedisReplyReader::Limits kLimits = {1000, 2000, 100};

struct Answers {
  std::vector<RedisReply> replies;
  bool failed = false;
};

Answers Cut(absl::string_view bytes, size_t step) {
  RedisReplyReader reader(kLimits);
  Answers answers;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(step, bytes.size()))) {
    reader.Feed(bytes.substr(0, step));
    while (true) {
      auto reply = reader.Next();
      if (!reply.ok()) {
        Promise(absl::IsUnavailable(reply.status()), "UNAVAILABLE");
        fuzz::PromiseOneLine(reply.status());
        answers.failed = true;
        return answers;
      }
      if (!reply->has_value()) break;
      answers.replies.push_back(**std::move(reply));
    }
  }
  return answers;
}

struct Size {
  size_t bytes = 0, elements = 0;
};

// All of a reply as text; counts what is in it.
std::string Written(const RedisReply& reply, Size* size) {
  size->bytes += reply.text.size();
  size->elements += reply.elements.size();
  std::string text = absl::StrCat(static_cast<int>(reply.kind), ":", reply.integer, ":",
                                  reply.text.size(), ":", reply.text, "[");
  for (const RedisReply& element : reply.elements) absl::StrAppend(&text, Written(element, size));
  return text + "]";
}

void PromiseError(const absl::Status& status) {
  fuzz::PromiseOneLine(status);
  Promise(
      absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsResourceExhausted(status),
      "an error of SessionStore");
}

void ReadAnswer(const RedisReply& reply, bool of_read) {
  const auto answer = ReadStoreAnswer(reply, of_read);
  if (!answer.ok()) return PromiseError(answer.status());
  const StoreRecord& found = answer->found;
  const bool must = answer->kind == StoreAnswer::Kind::kClaimMismatch ||
                    (of_read && answer->kind == StoreAnswer::Kind::kDone);
  Promise(!answer->store_id.empty(), "an id of the store");
  Promise(found.claim.size() == (must ? kClaimBytes : 0), "a claim of what was found");
  Promise(found.lease >= absl::ZeroDuration(), "a lease is not negative");
}

void Read(const RedisReply& reply) {
  ReadAnswer(reply, false);
  ReadAnswer(reply, true);
  const size_t count = reply.elements.size();
  const auto chunks = ReadChunksAnswer(reply, count);
  if (chunks.ok()) {
    Promise(chunks->size() == count, "as many chunks as were asked for");
  } else {
    PromiseError(chunks.status());
  }
  const auto other = ReadChunksAnswer(reply, count + 1);
  Promise(!other.ok(), "not as many as were asked for");
  const auto members = ReadMembersAnswer(reply);
  if (members.ok()) {
    Promise(members->size() * 2 == count, "a time for each member");
  } else {
    PromiseError(members.status());
  }
  RedisFacts facts;
  const absl::Status info = ReadRedisInfo(reply.text, &facts);
  if (!info.ok()) fuzz::PromiseOneLine(info);
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const rivulet::Answers whole = rivulet::Cut(bytes, size);
  const rivulet::Answers cut = rivulet::Cut(bytes, 1 + data[0] % 16);
  rivulet::fuzz::Promise(whole.failed == cut.failed && whole.replies.size() == cut.replies.size(),
                         "the same answers");
  for (size_t i = 0; i < whole.replies.size(); ++i) {
    rivulet::Size held, again;
    rivulet::fuzz::Promise(
        rivulet::Written(whole.replies[i], &held) == rivulet::Written(cut.replies[i], &again),
        "the same answer");
    rivulet::fuzz::Promise(
        held.bytes <= rivulet::kLimits.reply_bytes && held.elements <= rivulet::kLimits.elements,
        "the limits");
    rivulet::Read(whole.replies[i]);
  }
  return 0;
}
