// SPDX-License-Identifier: Apache-2.0
// TextPool: threads that convert long texts of clients to tokens, and tokens to text. gRPC has few
// threads, and all calls share them.
//
// A text waits in a lane for texts of its size, so that short texts do not wait for long texts. In
// a lane tenants take turns, and a tenant has only a share of the waiting texts (fair_share.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/text/text_budget.h"
#include "server/base/mutex.h"

namespace rivulet {

// A text to convert. The call, which may cancel it, and the thread that converts it share this
// object. Thread: Check and Cancel any.
class TextTurn {
 public:
  struct Order {
    std::string tenant;
    int64_t bytes = 0;         // of the text
    int64_t memory_bytes = 0;  // that the conversion takes beside the text, if it is ordinary
    absl::Time deadline = absl::InfiniteFuture();
  };
  // `convert` is called once in any case. If Check is not OK, it must answer with that error.
  using Convert = std::function<void(const TextTurn& turn)>;

  TextTurn(Order order, Convert convert);

  // OK, or the reason not to convert the text, or to stop: CANCELLED, DEADLINE_EXCEEDED, or the
  // error with which the text was refused. Call it before the work and between parts of the work.
  absl::Status Check() const;
  // Check, as a function for a TextBudget. Valid while this lives.
  TextBudget::Stopped Stopped() const {
    return [this] { return Check(); };
  }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  const Order& order() const { return order_; }
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Calls `convert` and frees it. If `refused` is an error, Check returns it.
  void Run(const absl::Status& refused);

 private:
  const Order order_;
  Convert convert_;
  absl::Status refused_;
  std::atomic<bool> cancelled_ = false;
};

// The waiting texts of one range of sizes, and the threads that convert them. Thread: any.
class TextLane {
 public:
  struct Options {
    int threads = 1;
    int64_t waiting_bytes = 0;  // of all waiting texts
    int64_t memory_bytes = 0;   // taken by the texts that are being converted
  };

  // The threads start with the first text.
  explicit TextLane(const Options& options) : options_(options) {}
  // Refuses waiting texts (DRAINING) and waits for the texts that are being converted.
  ~TextLane();

  // Runs `turn` on a thread of the lane when its turn comes. Errors: RESOURCE_EXHAUSTED
  // (TEXT_QUEUE_FULL); then `turn` is not run.
  absl::Status Add(const std::shared_ptr<TextTurn>& turn);
  // If `turn` waits, takes it out; then the caller must run it.
  bool Remove(const TextTurn* turn);

 private:
  using Waiting = std::list<std::shared_ptr<TextTurn>>;
  struct Tenant {
    Waiting turns;  // never empty
    int64_t bytes = 0;
    std::list<std::string>::iterator place;  // in order_
  };

  void Serve();
  std::shared_ptr<TextTurn> TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first text of the tenant whose turn it is, if it may begin now.
  bool MayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(const std::string& tenant, Waiting::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  absl::flat_hash_map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);  // with waiting texts
  std::list<std::string> order_ ABSL_GUARDED_BY(mutex_);  // of tenants_: whose turn is next
  absl::flat_hash_map<const TextTurn*, Waiting::iterator> places_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t memory_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of texts that are being converted
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

// Thread: any.
class TextPool {
 public:
  // The caller's thread converts a text of at most kInlineBytes: this takes less than a
  // millisecond, and to change threads takes time, too.
  static constexpr int64_t kInlineBytes = int64_t{4} << 10;
  // Longer texts go to a lane for long texts, which has its own threads.
  static constexpr int64_t kShortBytes = int64_t{64} << 10;

  TextPool();

  // Runs `turn` once: here and now if it is small or refused, else on a thread of a lane. It is
  // refused if `refused` is an error, or with the error of TextLane::Add.
  void Run(const std::shared_ptr<TextTurn>& turn, const absl::Status& refused);
  // Ends `turn` early: if it waits, it is run here and now; if it is being converted, Check tells
  // it.
  void Cancel(const std::shared_ptr<TextTurn>& turn);

 private:
  TextLane& LaneOf(const TextTurn& turn) {
    return turn.order().bytes <= kShortBytes ? short_ : long_;
  }

  TextLane short_;
  TextLane long_;
};

}  // namespace rivulet
