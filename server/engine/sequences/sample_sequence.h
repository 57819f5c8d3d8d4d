// SPDX-License-Identifier: Apache-2.0
// A Generate in the engine, and its samples.
//
// Life of a sample: prefill (feeds the prompt, the implied bos first, and draws at its end), then
// decode (feeds what it drew). With several samples, sample 0 feeds all but the last prompt token,
// its state is copied to the others, and then every sample feeds that last token itself and draws
// with its own sample index.
//
// A resumed sample also feeds the tokens that its client has, behind the prompt and as generated
// tokens, before it draws. If they include the token that ended the sample, this token is drawn
// again and ends the sample again. None of these tokens is delivered.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/text/text_decoder.h"
#include "server/constraints/compiler.h"
#include "server/engine/options.h"
#include "server/engine/reply.h"
#include "server/engine/sequences/drafter.h"
#include "server/engine/sequences/end_mask.h"
#include "server/engine/sequences/live_request.h"
#include "server/engine/sequences/reasoning_counter.h"
#include "server/engine/sequences/sample_constraint.h"
#include "server/engine/sequences/stop_matcher.h"

namespace rivulet {

class Generation final : public LiveRequest {
 public:
  // `max_new_tokens`: the most tokens that each sample draws; with a session it is known only in
  // Begin. `grammar_in`: of spec_in.constraint, if it has one. REQUIRES: `spec_in` is valid
  // (validate.h), max_new_tokens >= 1.
  Generation(GenerateSpec spec_in, Grammar grammar_in, int64_t max_new_tokens,
             const ModelView& model_view, const EngineOptions& engine_options,
             ReplyListener* reply_listener);

  std::optional<absl::Status> Prepare() override;
  absl::Status Begin(SessionTable* table, absl::Time now) override;
  KeptCheckpoint BestState(PrefixCache* cache) override;
  absl::Status StartFrom(Checkpoint state, SessionTable* table, absl::Time now) override;
  std::span<const int32_t> sequence_tokens() const override;
  void CreateSequences() override;
  void Settle(const absl::Status& end) override;
  bool reader_slow() override;
  void SetWake(std::function<void()> wake) override;
  void DescribeProgress(ErrorDetail* detail) const override;
  void OnReady() override { listener->OnReady(); }
  void OnEnd() override;

  const ModelView model;
  const EngineOptions& options;
  GenerateSpec spec;
  int64_t max_new;
  const Grammar grammar;
  const StopStrings stop_strings;
  const StopStrings reasoning_end;  // empty: spec.reasoning is absent
  std::vector<int32_t>
      feed;  // the implied bos and the tokens after it, except what `start` has seen
  std::vector<bool> feed_output;    // [feed] whether generated; empty: none was
  std::vector<TokenCount> history;  // counts of the tokens fed before `feed`
  const std::shared_ptr<Reply> reply = std::make_shared<Reply>();
  ReplyListener* const listener;

 private:
  friend class SampleSequence;
  int64_t bos() const { return model.config->has_bos() ? 1 : 0; }
  // Tokens that are fed before the first token is drawn, tokens that `start` has seen included.
  int64_t total() const { return bos() + static_cast<int64_t>(sequence_tokens().size()); }
  // The tokens before the first draw, without the bos.
  std::span<const int32_t> given() const {
    return session == nullptr ? std::span<const int32_t>(spec.prompt)
                              : sequence_tokens().first(static_cast<size_t>(prompt_end_));
  }
  std::optional<SessionProgress> Progress() const;
  // The bytes of a token in a reply's text.
  absl::string_view TextOf(int32_t token) const;
  // Sets up the reply that begins at `position` of the session; refuses to resume another reply.
  absl::Status BeginReplyAt(int64_t position);
  // Of a sample's next draw; null: it may end the sample.
  const TokenMask* EndMaskAfter(int64_t drawn) const;
  // A matcher that has seen what was written before, and then `resumed`; null: no constraint.
  std::unique_ptr<ConstraintMatcher> NewMatcher(std::span<const int32_t> resumed) const;

  int64_t appended_ = 0;    // tokens of the prompt that the session did not hold already
  int64_t prompt_end_ = 0;  // position of the session after the prompt
  bool reader_slow_ = false;
  std::optional<EndMask> end_mask_;  // of the first min_tokens tokens; absent: nothing to mask
  std::shared_ptr<ConstraintGrammar> compiled_;  // null: no constraint, or not asked for yet
};

// The tokens that are fed before a draw as a prompt is: `feed` of the request, then those that the
// client has of the reply, and forced ones.
struct BeforeDraw {
  const Generation& request;
  std::vector<int32_t> more = {};  // behind `feed`

  int64_t end() const { return static_cast<int64_t>(request.feed.size() + more.size()); }
  int32_t token(int64_t i) const;
  bool is_output(int64_t i) const;  // it was drawn before
};

class SampleSequence final : public Sequence {
 public:
  SampleSequence(Generation* owner, int index);

  bool runnable() const override { return phase_ != Phase::kWaitForFork && !constraint_.waits(); }
  SequenceView View() const override;
  std::optional<SlotSampler> Sampler() const override;
  void FillRow(const RowShare& share, TokenBuffer* buffer, RunRow* run_row) override;
  void OnRecord(Record* record) override;
  bool TakeKnown(int64_t* forced) override;
  bool keeps_slot() const override { return constraint_.late(); }
  bool Flush() override;
  Next OnRunDone() override;
  void OnForked() override { StartDecoding(); }
  Checkpoint start() const override { return index_ == 0 ? generate_->start : Checkpoint(); }
  const Sequence* copies_from() const override;
  int64_t fed() const override { return position_; }
  bool ended_at_limit() const override;
  int64_t delivered() const { return delivered_; }

 private:
  bool prefills() const { return phase_ == Phase::kPrefill || phase_ == Phase::kForced; }
  struct HeldToken {
    int32_t token;
    absl::string_view text;  // its bytes, of the tokenizer
    float logprob;
    std::vector<TokenLogprob> top;
  };
  // REQUIRES: nothing was fed.
  void Resume(std::span<const int32_t> received);
  // The prompt without its last token is in the slot.
  void StartDecoding();
  // The most drafts that may stand behind the next token to feed.
  int64_t DraftRoom() const;
  // Appends up to `most` drafts to `buffer` and describes them in `run_row`.
  void AddDrafts(int most, TokenBuffer* buffer, RunRow* run_row);
  std::vector<TokenCount> History() const;
  // Takes in a token that was drawn, or was the only one allowed.
  void Write(Record* record);
  // Writes the only tokens that were allowed, and feeds them with what was not fed before.
  void WriteForced(std::span<const int32_t> forced);
  void Keep(HeldToken token);
  void EndAtMatch(const StopMatcher::Result& result);
  void Release(int count);
  void Deliver(HeldToken* token);
  void End(FinishReason reason);

  Generation* const generate_;
  const int index_;
  // kForced: it feeds forced tokens, as kPrefill feeds a prompt.
  enum class Phase : uint8_t { kPrefill, kWaitForFork, kDecode, kForced } phase_ = Phase::kPrefill;
  int64_t prefill_end_;   // prefill feeds the tokens before it
  int64_t cursor_ = 0;    // the next token to feed
  int64_t position_ = 0;  // tokens fed to the slot, once the outstanding run is complete
  struct {
    int32_t token = 0;
    bool is_output = false;  // it was drawn, by this request or an earlier one
  } next_;                   // decode: the next token to feed
  int drawn_in_run_ = 0;
  BeforeDraw before_;
  int64_t skipped_ = 0;                // tokens to come that the client already has
  int64_t drawn_ = 0;                  // before_.more included
  std::vector<int32_t> drawn_tokens_;  // without those; filled only for penalties
  int64_t delivered_ = 0;              // resumed tokens included
  StopMatcher matcher_;
  std::vector<HeldToken> held_;         // kept from the reply by matcher_
  std::optional<TextDecoder> decoder_;  // where the model has a tokenizer
  std::optional<ReasoningCounter> reasoning_;
  SampleConstraint constraint_;
  std::optional<Drafter> drafter_;  // absent: nothing is guessed
  ReplyDelta out_;                  // to go to the reply with the next Flush
};

}  // namespace rivulet
