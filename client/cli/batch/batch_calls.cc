// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_calls.h"

#include <utility>

namespace rivulet {

BatchCalls::BatchCalls(const Client& client)
    : client_(client), multiplex_(client.Multiplex({.stop = stop_.get_token()})) {}

BatchCalls::~BatchCalls() {
  stop_.request_stop();
  while (open_ > 0) Wait(absl::InfiniteFuture());
}

void BatchCalls::Start(std::unique_ptr<BatchItem> item) {
  ++open_;
  BatchItem* const started = item.release();  // End() takes it back; std::function copies
  started->reply = {};
  if (const auto* const generate = std::get_if<v1::GenerateRequest>(&started->in.line.request)) {
    StartGenerate(started, *generate);
  } else if (const auto* const chat = std::get_if<ChatRequest>(&started->in.line.request)) {
    StartGenerate(started, chat->generate);
  } else {
    StartScore(started);
  }
}

void BatchCalls::StartGenerate(BatchItem* item, const v1::GenerateRequest& request) {
  multiplex_->Generate(
      request,
      [this, item](const v1::MultiplexPart& part) {
        tokens_ += part.tokens_size();
        item->reply.Take(part);
        return true;
      },
      [this, item](const absl::Status& status) { End(item, status); });
}

void BatchCalls::StartScore(BatchItem* item) {
  client_.ScoreAsync(std::get<v1::ScoreRequest>(item->in.line.request),
                     [this, item](absl::StatusOr<v1::ScoreReply> reply) {
                       const absl::Status status = reply.status();
                       if (reply.ok()) {
                         item->score = *std::move(reply);
                         tokens_ += item->score.num_scored();
                       }
                       End(item, status);
                     },
                     {.stop = stop_.get_token()});
}

void BatchCalls::End(BatchItem* item, const absl::Status& status) {
  item->in.status = status;
  absl::MutexLock lock(&mutex_);
  ended_.emplace_back(item);
}

std::vector<std::unique_ptr<BatchItem>> BatchCalls::Wait(absl::Time until) {
  absl::MutexLock lock(&mutex_);
  const auto has_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !ended_.empty(); };
  mutex_.AwaitWithDeadline(absl::Condition(&has_ended), until);
  std::vector<std::unique_ptr<BatchItem>> ended;
  ended.swap(ended_);
  open_ -= ended.size();
  return ended;
}

}  // namespace rivulet
