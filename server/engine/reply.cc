// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reply.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rivulet {
namespace {

template <typename T>
void MoveBack(std::vector<T>&& from, std::vector<T>* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

int64_t ContentBytes(const ReplyDelta& delta) {
  size_t bytes = delta.tokens.size() * sizeof(int32_t) + delta.text.size() +
                 delta.logprobs.size() * sizeof(float);
  for (const auto& top : delta.top_logprobs) bytes += sizeof(top) + top.size() * sizeof(top[0]);
  return static_cast<int64_t>(bytes);
}

std::vector<ReplyDelta> Reply::Take() {
  MutexLock lock(&mutex_);
  std::vector<ReplyDelta> taken = std::move(deltas_);
  deltas_.clear();
  std::fill(open_.begin(), open_.end(), -1);
  const int64_t had_pending = std::exchange(pending_bytes_, 0);
  if (wake_ && had_pending > wake_above_) wake_();
  return taken;
}

std::optional<Reply::End> Reply::end() const {
  MutexLock lock(&mutex_);
  return end_;
}

RequestId Reply::id() const {
  MutexLock lock(&mutex_);
  return id_;
}

void Reply::SetId(RequestId id) {
  MutexLock lock(&mutex_);
  id_ = id;
}

std::optional<uint64_t> Reply::fingerprint() const {
  MutexLock lock(&mutex_);
  return fingerprint_;
}

void Reply::SetFingerprint(uint64_t fingerprint) {
  MutexLock lock(&mutex_);
  fingerprint_ = fingerprint;
}

int64_t Reply::pending_bytes() const {
  MutexLock lock(&mutex_);
  return pending_bytes_;
}

int64_t Reply::Append(ReplyDelta delta) {
  MutexLock lock(&mutex_);
  const size_t sample = static_cast<size_t>(delta.sample_index);
  if (sample >= open_.size()) open_.resize(sample + 1, -1);
  pending_bytes_ += ContentBytes(delta);
  if (open_[sample] < 0) {
    open_[sample] = static_cast<int>(deltas_.size());
    deltas_.push_back(std::move(delta));
    return pending_bytes_;
  }
  ReplyDelta& last = deltas_[static_cast<size_t>(open_[sample])];
  MoveBack(std::move(delta.tokens), &last.tokens);
  last.text += delta.text;
  MoveBack(std::move(delta.logprobs), &last.logprobs);
  MoveBack(std::move(delta.top_logprobs), &last.top_logprobs);
  if (delta.finish) last.finish = std::move(delta.finish);
  last.session = delta.session;
  return pending_bytes_;
}

void Reply::Finish(End end) {
  MutexLock lock(&mutex_);
  if (end_) return;
  end_ = std::move(end);
  wake_ = nullptr;
}

void Reply::SetWake(int64_t above, std::function<void()> wake) {
  MutexLock lock(&mutex_);
  wake_above_ = above;
  wake_ = std::move(wake);
}

}  // namespace rivulet
