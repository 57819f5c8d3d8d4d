// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/text_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/thread.h"
#include "server/base/fair_share.h"

namespace rivulet {
namespace {

constexpr int64_t kShortLaneBytes = int64_t{16} << 20;
constexpr int64_t kLongLaneBytes = int64_t{64} << 20;
// Limits of Order::memory_bytes, which are 16 for each byte of text. A text of more than 3 MiB is
// converted alone in its lane, and a text of 4 MiB takes 64 MiB. The threads of the short lane
// never have more than 4 MiB. A text that is made to be hard takes more, up to its TextBudget on
// each thread: docs/security.md has the figures.
constexpr int64_t kShortMemoryBytes = int64_t{16} << 20;
constexpr int64_t kLongMemoryBytes = int64_t{48} << 20;

// The threads of one lane: a few, below the number of cores.
int LaneThreads() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 4, 1, 4);
}

absl::Status StopError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       absl::Duration retry_after = absl::ZeroDuration()) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.retry_after = retry_after;
  return MakeError(code, message, detail);
}

absl::Status QueueFull(absl::string_view message) {
  return Exhausted("TEXT_QUEUE_FULL", absl::Seconds(1), message);
}

}  // namespace

TextTurn::TextTurn(Order order, Convert convert)
    : order_(std::move(order)), convert_(std::move(convert)) {}

absl::Status TextTurn::Check() const {
  if (!refused_.ok()) return refused_;
  if (cancelled()) {
    return StopError(absl::StatusCode::kCancelled, "CANCELLED",
                     "The client cancelled the request.");
  }
  if (order_.deadline != absl::InfiniteFuture() && absl::Now() >= order_.deadline) {
    return StopError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                     "The request's deadline has passed before its text was converted.");
  }
  return absl::OkStatus();
}

void TextTurn::Run(const absl::Status& refused) {
  refused_ = refused;
  const Convert convert = std::move(convert_);
  convert(*this);
}

TextLane::~TextLane() {
  std::vector<std::thread> threads;
  Waiting left;
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    threads.swap(threads_);
    for (auto& [name, tenant] : tenants_) left.splice(left.end(), tenant.turns);
    tenants_.clear();
    order_.clear();
    places_.clear();
  }
  changed_.NotifyAll();
  for (const auto& turn : left) {
    turn->Run(StopError(absl::StatusCode::kUnavailable, "DRAINING", "The server is draining.",
                        absl::Seconds(1)));
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status TextLane::Add(const std::shared_ptr<TextTurn>& turn) {
  const int64_t bytes = turn->order().bytes;
  {
    MutexLock lock(&mutex_);
    const auto found = tenants_.find(turn->order().tenant);
    const int64_t own = found == tenants_.end() ? 0 : found->second.bytes;
    const int64_t most = MostFor(options_.waiting_bytes, waiting_bytes_, own);
    // A text that is larger than the lane has the lane alone.
    if (waiting_bytes_ > 0 && own + bytes > most) {
      return QueueFull(absl::StrCat("the texts that wait to be converted have ", waiting_bytes_,
                                    " bytes, ", own, " of them this tenant's, whose share is now ",
                                    most, "; this one has ", bytes));
    }
    Tenant& tenant = tenants_[turn->order().tenant];
    if (tenant.turns.empty()) {
      tenant.place = order_.insert(order_.end(), turn->order().tenant);
    }
    tenant.bytes += bytes;
    waiting_bytes_ += bytes;
    places_[turn.get()] = tenant.turns.insert(tenant.turns.end(), turn);
    while (threads_.size() < static_cast<size_t>(options_.threads)) {
      threads_.emplace_back([this] { Serve(); });
    }
  }
  changed_.NotifyOne();
  return absl::OkStatus();
}

bool TextLane::Remove(const TextTurn* turn) {
  MutexLock lock(&mutex_);
  const auto found = places_.find(turn);
  if (found == places_.end()) return false;
  Erase(turn->order().tenant, found->second);
  return true;
}

void TextLane::Erase(const std::string& tenant, Waiting::iterator at) {
  const auto found = tenants_.find(tenant);
  Tenant& own = found->second;
  const int64_t bytes = (*at)->order().bytes;
  waiting_bytes_ -= bytes;
  own.bytes -= bytes;
  places_.erase(at->get());
  own.turns.erase(at);
  if (!own.turns.empty()) return;
  order_.erase(own.place);
  tenants_.erase(found);
}

bool TextLane::MayBegin() const {
  if (order_.empty()) return false;
  const int64_t wanted = tenants_.at(order_.front()).turns.front()->order().memory_bytes;
  return memory_bytes_ == 0 || memory_bytes_ + wanted <= options_.memory_bytes;
}

std::shared_ptr<TextTurn> TextLane::TakeNext() {
  Tenant& tenant = tenants_.find(order_.front())->second;
  order_.splice(order_.end(), order_, tenant.place);
  std::shared_ptr<TextTurn> turn = tenant.turns.front();
  Erase(turn->order().tenant, tenant.turns.begin());
  memory_bytes_ += turn->order().memory_bytes;
  return turn;
}

void TextLane::Serve() {
  NameThread("text");
  for (;;) {
    std::shared_ptr<TextTurn> turn;
    {
      MutexLock lock(&mutex_);
      while (!ending_ && !MayBegin()) changed_.Wait(&mutex_);
      if (ending_) return;
      turn = TakeNext();
    }
    const int64_t memory = turn->order().memory_bytes;
    turn->Run(absl::OkStatus());
    turn.reset();
    {
      MutexLock lock(&mutex_);
      memory_bytes_ -= memory;
    }
    changed_.NotifyAll();  // several may fit now
  }
}

TextPool::TextPool()
    : short_({LaneThreads(), kShortLaneBytes, kShortMemoryBytes}),
      long_({LaneThreads(), kLongLaneBytes, kLongMemoryBytes}) {}

void TextPool::Run(const std::shared_ptr<TextTurn>& turn, const absl::Status& refused) {
  if (!refused.ok() || turn->order().bytes <= kInlineBytes || turn->cancelled()) {
    return turn->Run(refused);
  }
  const absl::Status added = LaneOf(*turn).Add(turn);
  if (!added.ok()) return turn->Run(added);
  // Cancel may have looked for the turn before it was there.
  if (turn->cancelled()) Cancel(turn);
}

void TextPool::Cancel(const std::shared_ptr<TextTurn>& turn) {
  turn->Cancel();
  if (LaneOf(*turn).Remove(turn.get())) turn->Run(absl::OkStatus());
}

}  // namespace rivulet
