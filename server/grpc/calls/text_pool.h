// SPDX-License-Identifier: Apache-2.0
// TextPool: the threads on which the long texts of clients become tokens, and tokens text. gRPC has
// few threads, and all calls share them.
//
// A text waits in a lane of texts of its size, so that short ones do not wait for long ones. In a
// lane tenants take turns, and each may have only a share of the texts that wait (fair_share.h).
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

// A text that is to be converted, shared by its call, which may cancel it, and whoever converts it.
// Thread: Check and Cancel any.
class TextTurn {
 public:
  struct Order {
    std::string tenant;
    int64_t bytes = 0;         // of the text
    int64_t memory_bytes = 0;  // that converting it takes beside that
    absl::Time deadline = absl::InfiniteFuture();
  };
  // `convert` is called once, in the end, also where Check is not OK: it then answers with that.
  using Convert = std::function<void(const TextTurn& turn)>;

  TextTurn(Order order, Convert convert);

  // OK, or why the text is not to be converted, or not any further: CANCELLED, DEADLINE_EXCEEDED,
  // or what it was refused with. To be asked before the work and between pieces of it.
  absl::Status Check() const;
  // Check, for a TextBudget. As long as this lives.
  TextBudget::Stopped Stopped() const {
    return [this] { return Check(); };
  }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  const Order& order() const { return order_; }
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Calls `convert`, which learns `refused` from Check unless that is OK. Frees it afterwards.
  void Run(const absl::Status& refused);

 private:
  const Order order_;
  Convert convert_;
  absl::Status refused_;
  std::atomic<bool> cancelled_ = false;
};

// Texts of one class of sizes, and the threads that convert them. Thread: any.
class TextLane {
 public:
  struct Options {
    int threads = 1;
    int64_t waiting_bytes = 0;  // of the texts that wait, all together
    int64_t memory_bytes = 0;   // that those take which are being converted
  };

  // The threads start with the first text.
  explicit TextLane(const Options& options) : options_(options) {}
  // Those that wait are refused (DRAINING), those that are being converted are waited for.
  ~TextLane();

  // Has it run on a thread of the lane when its turn comes. Errors: RESOURCE_EXHAUSTED
  // (TEXT_QUEUE_FULL), and then it is not run.
  absl::Status Add(const std::shared_ptr<TextTurn>& turn);
  // Takes it out, if it waits; then the caller has to run it.
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
  // The first of the tenant whose turn it is, if it may begin now.
  bool MayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(const std::string& tenant, Waiting::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  absl::flat_hash_map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);  // that have some
  std::list<std::string> order_ ABSL_GUARDED_BY(mutex_);  // of tenants_: whose turn is next
  absl::flat_hash_map<const TextTurn*, Waiting::iterator> places_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t memory_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those that are being converted
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

// Thread: any.
class TextPool {
 public:
  // A text of at most so many bytes is converted by whoever brings it: that takes less than a
  // millisecond, and changing threads takes time too.
  static constexpr int64_t kInlineBytes = int64_t{4} << 10;
  // Longer ones are long; their lane has threads of its own.
  static constexpr int64_t kShortBytes = int64_t{64} << 10;

  TextPool();

  // Runs `turn` once: here and now if it is small or refused, else on a thread of a lane. The error
  // of a refusal is that of TextLane::Add; where `refused` is an error, it is that.
  void Run(const std::shared_ptr<TextTurn>& turn, const absl::Status& refused);
  // Ends it early: one that waits is run here and now, one that is being converted learns it from
  // Check.
  void Cancel(const std::shared_ptr<TextTurn>& turn);

 private:
  TextLane& LaneOf(const TextTurn& turn) {
    return turn.order().bytes <= kShortBytes ? short_ : long_;
  }

  TextLane short_;
  TextLane long_;
};

}  // namespace rivulet
