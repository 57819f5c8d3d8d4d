// SPDX-License-Identifier: Apache-2.0
// TimedCalls: calls that may hang with the disk, one after another on a thread of their own. A
// second thread refuses calls that take too long.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rivulet {

struct TimedCallsOptions {
  const char* name = "";    // of the thread that makes the calls (NameThread)
  std::string whose;        // for errors: "The session store", say
  size_t most_waiting = 0;  // calls
  // A call is refused this long after Push, or this long after it has begun. While a call that was
  // refused because of since_begin has not returned, all other calls are refused, too.
  absl::Duration since_push = absl::InfiniteDuration();
  absl::Duration since_begin = absl::InfiniteDuration();
  // How long the destructor waits for the running call, and then for the thread.
  absl::Duration end_time = absl::Seconds(1);
  // Called between calls at this interval; again at once if it returns true.
  std::function<bool()> sweep = nullptr;
  absl::Duration sweep_every = absl::InfiniteDuration();
};

// Thread: any.
class TimedCalls {
 public:
  explicit TimedCalls(TimedCallsOptions options);
  // Refuses the waiting calls, and in the end the running call. A thread that hangs is then left
  // behind (leave_behind.h), so the calls and the sweep must own what they use. Thread: neither of
  // its two threads.
  ~TimedCalls();
  TimedCalls(const TimedCalls&) = delete;
  TimedCalls& operator=(const TimedCalls&) = delete;

  // `ask` is called on the thread; `done` gets its result, or UNAVAILABLE: the call took too long,
  // too many calls wait, or this is being destroyed. `done` is called exactly once, on one of the
  // two threads, and must not block. A call that hangs does not keep `done` alive. An `ask` that
  // takes a `const std::atomic<bool>&` can see there whether the call was refused meanwhile.
  template <typename Answer, typename Ask>
  void Push(std::function<void(Answer)> done, Ask ask) {
    struct Asked {
      std::function<void(Answer)> done;  // the answering thread takes it
      std::atomic<bool> refused = false;
    };
    const auto asked = std::make_shared<Asked>();
    asked->done = std::move(done);
    Push({[asked, ask = std::move(ask)]() -> std::function<void()> {
            const auto answer = [&]() -> Answer {
              if constexpr (std::is_invocable_v<const Ask&, const std::atomic<bool>&>) {
                return ask(asked->refused);
              } else {
                return ask();
              }
            };
            return [asked, answer = answer()]() mutable {
              std::exchange(asked->done, nullptr)(std::move(answer));
            };
          },
          [asked](const absl::Status& why) {
            asked->refused = true;
            std::exchange(asked->done, nullptr)(why);
          }});
  }

 private:
  // One of the two functions gives the answer.
  struct Call {
    std::function<std::function<void()>()> ask;  // returns the function that answers
    std::function<void(const absl::Status& why)> refuse;
  };
  class Queue;

  void Push(Call call);

  const std::shared_ptr<Queue> queue_;
  std::thread work_, watch_;
};

}  // namespace rivulet
