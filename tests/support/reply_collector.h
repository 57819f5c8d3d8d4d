// SPDX-License-Identifier: Apache-2.0
// ReplyCollector: a client of the engine that keeps its reply and checks the rules of a reply's
// stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/engine.h"
#include "tests/support/unshared.h"

namespace rivulet {

// One sample as the client saw it.
struct CollectedSample {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  std::optional<Finish> finish;
  std::optional<SessionProgress> session;  // of the last delta
};

// Thread: any. Must outlive the reply's last OnReady, for which Wait() waits.
class ReplyCollector final : public ReplyListener {
 public:
  enum class Reading { kEager, kOnlyWhenAsked };
  explicit ReplyCollector(Reading reading = Reading::kEager) : reading_(reading) {}

  // Sends `spec` and returns the engine's answer; the reply then arrives by itself, after the
  // tokens that `spec` resumes.
  absl::Status Start(Engine* engine, GenerateSpec spec) {
    std::lock_guard<std::mutex> lock(mutex_);  // OnReady waits until reply_ is set
    const int num_samples = spec.num_samples;
    const std::optional<LostReply> resume = spec.resume;
    absl::StatusOr<std::shared_ptr<Reply>> submitted = engine->Generate(std::move(spec), this);
    if (!submitted.ok()) return submitted.status();
    reply_ = *std::move(submitted);
    samples_.resize(static_cast<size_t>(num_samples));
    for (size_t i = 0; resume && i < samples_.size(); ++i) samples_[i].tokens = resume->tokens[i];
    return absl::OkStatus();
  }

  // Waits for the last OnReady; returns how the reply ended.
  absl::Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return end_.has_value(); });
    Take();
    return end_->status;
  }
  // Waits until sample 0 has `count` tokens or the reply has ended.
  void WaitForTokens(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return end_ || samples_[0].tokens.size() >= count; });
  }
  void TakeNow() {
    std::lock_guard<std::mutex> lock(mutex_);
    Take();
  }

  RequestId id() const { return reply_->id(); }
  uint64_t fingerprint() const { return *reply_->fingerprint(); }
  Reply& reply() const { return *reply_; }
  // After Wait.
  const CollectedSample& sample(size_t i = 0) const { return samples_[i]; }
  const Usage& usage() const { return end_->usage; }
  int calls() const { return calls_; }
  // The first violation of the rules of the stream; empty: none.
  const std::string& violation() const { return violation_; }

  void OnReady() override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    if (end_) violation_ = "OnReady after the end";
    std::optional<Reply::End> end = reply_->end();
    if (reading_ == Reading::kEager || end) Take();
    if (end) {
      end_ = std::move(end);
      end_->status = Unshared(end_->status);  // the waiting thread reads it concurrently
    }
    changed_.notify_all();
  }

 private:
  void Take() {
    for (ReplyDelta& delta : reply_->Take()) {
      CollectedSample& sample = samples_[static_cast<size_t>(delta.sample_index)];
      if (delta.first_position != static_cast<int64_t>(sample.tokens.size())) violation_ = "gap";
      if (sample.finish) violation_ = "delta after the finish";
      sample.tokens.insert(sample.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      sample.text += delta.text;
      sample.logprobs.insert(sample.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
      for (auto& top : delta.top_logprobs) sample.top_logprobs.push_back(std::move(top));
      sample.finish = delta.finish;
      sample.session = delta.session;
    }
  }

  const Reading reading_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Reply> reply_;
  std::vector<CollectedSample> samples_;
  std::optional<Reply::End> end_;
  int calls_ = 0;
  std::string violation_;
};

}  // namespace rivulet
