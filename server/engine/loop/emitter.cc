// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/emitter.h"

#include <utility>

#include "model/base/thread.h"
#include "server/engine/reply.h"

namespace rivulet {
namespace {

using Calls = std::vector<std::function<void()>>;

// The calls of RunAfterBatch in the batch that this thread is delivering; null between batches.
thread_local Calls* after_batch = nullptr;

}  // namespace

void RunAfterBatch(std::function<void()> callback) {
  if (after_batch == nullptr) return callback();
  after_batch->push_back(std::move(callback));
}

Emitter::Emitter(Threads threads) {
  if (threads == Threads::kOwn) thread_ = std::thread([this] { Run(); });
}

Emitter::~Emitter() {
  if (!thread_.joinable()) {
    Deliver();
    return;
  }
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    filled_.NotifyAll();
  }
  thread_.join();
}

void Emitter::PutReady(Outlet* outlet) {
  if (!outlet->ready_.exchange(true, std::memory_order_acq_rel)) put_.ready.push_back(outlet);
}

void Emitter::PutEnd(std::unique_ptr<Outlet> outlet) {
  outlet->ended_ = true;
  ended_.push_back(std::move(outlet));
}

bool Emitter::HandAll() {
  const bool ends = has_ends();
  if (ends) {
    // OnEnd delivers the last tokens too: one message instead of two.
    std::erase_if(put_.ready, [](const Outlet* outlet) { return outlet->ended_; });
    put_.ended.swap(ended_);
  }
  Hand(&put_);
  return ends;
}

void Emitter::End(std::unique_ptr<Outlet> outlet) {
  Batch batch;
  batch.ended.push_back(std::move(outlet));
  Hand(&batch);
}

void Emitter::Hand(Batch* batch) {
  if (batch->empty()) return;
  {
    MutexLock lock(&mutex_);
    ++batches_handed_;
    if (pending_.empty()) {
      std::swap(pending_, *batch);
    } else {
      // Pointers in `ready` stay valid: they are called before `ended`, and an outlet that ended in
      // an earlier batch is never in the `ready` of a later batch.
      pending_.ready.insert(pending_.ready.end(), batch->ready.begin(), batch->ready.end());
      for (auto& outlet : batch->ended) pending_.ended.push_back(std::move(outlet));
    }
    if (idle_) filled_.NotifyOne();
  }
  batch->ready.clear();
  batch->ended.clear();
}

void Emitter::Flush() {
  if (!thread_.joinable()) return Deliver();
  MutexLock lock(&mutex_);
  const uint64_t target = batches_handed_;
  while (batches_delivered_ < target) delivered_.Wait(&mutex_);
}

void Emitter::Deliver() {
  Batch batch;
  {
    MutexLock lock(&mutex_);
    std::swap(batch, pending_);
  }
  DeliverBatch(&batch);
}

void Emitter::Run() {
  NameThread("emitter");
  Batch batch;
  while (true) {
    uint64_t taken = 0;
    {
      MutexLock lock(&mutex_);
      while (pending_.empty() && !stop_) {
        idle_ = true;
        filled_.Wait(&mutex_);
      }
      idle_ = false;
      if (pending_.empty()) return;
      std::swap(batch, pending_);
      taken = batches_handed_;
    }
    DeliverBatch(&batch);
    MutexLock lock(&mutex_);
    batches_delivered_ = taken;
    delivered_.NotifyAll();
  }
}

void Emitter::DeliverBatch(Batch* batch) {
  Calls after;
  after_batch = &after;
  for (Outlet* outlet : batch->ready) {
    // Cleared first: anything that arrives during the call leads to another call.
    outlet->ready_.exchange(false, std::memory_order_acq_rel);
    outlet->OnReady();
  }
  batch->ready.clear();
  for (auto& outlet : batch->ended) {
    outlet->OnEnd();
    outlet.reset();
  }
  batch->ended.clear();
  after_batch = nullptr;
  for (const auto& callback : after) callback();
}

}  // namespace rivulet
