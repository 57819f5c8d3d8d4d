// SPDX-License-Identifier: Apache-2.0
// Reader: the listener of one simulated Generate; takes its tokens, or lets them wait.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/engine/reply.h"
#include "tests/simulation/truth.h"

namespace rivulet {

// Thread: one.
class Reader final : public ReplyListener {
 public:
  using Ended = std::function<void(const SeenReply& seen, const Usage& usage)>;
  // `samples`: the part of each sample that it has before the reply.
  Reader(bool eager, std::vector<SeenSample> samples) : eager_(eager) {
    seen_.samples = std::move(samples);
  }

  // Called before the first OnReady. `ended` may destroy this object.
  void Start(std::shared_ptr<Reply> reply, Ended ended) {
    reply_ = std::move(reply);
    ended_ = std::move(ended);
  }
  void Take();
  // The first violation of the rules of a reply's stream; empty: none.
  const std::string& broken() const { return broken_; }

  void OnReady() override {
    const std::optional<Reply::End> end = reply_->end();
    if (eager_ || end) Take();
    if (!end) return;
    seen_.status = end->status;
    const Ended ended = std::move(ended_);
    ended(seen_, end->usage);
  }

 private:
  const bool eager_;
  std::shared_ptr<Reply> reply_;
  Ended ended_;
  SeenReply seen_;
  std::string broken_;
};

inline void Reader::Take() {
  for (ReplyDelta& delta : reply_->Take()) {
    SeenSample& sample = seen_.samples[static_cast<size_t>(delta.sample_index)];
    if (delta.first_position != static_cast<int64_t>(sample.tokens.size()) &&
        !delta.tokens.empty()) {
      broken_ = "I1: a gap in the reply";
    }
    if (sample.finish) broken_ = "I1: a delta after the finish";
    sample.tokens.insert(sample.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    sample.logprobs.insert(sample.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    sample.text += delta.text;
    sample.finish = delta.finish;
    if (delta.session) {
      seen_.progress.emplace_back(static_cast<int64_t>(sample.tokens.size()), *delta.session);
    }
  }
}

}  // namespace rivulet
