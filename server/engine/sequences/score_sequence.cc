// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/score_sequence.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/engine/sequences/live_session_command.h"

namespace rivulet {

Scoring::Scoring(const ModelView& model_view, Done done_in)
    : output_size(model_view.config->output_size()), done(std::move(done_in)) {}

Scoring::Scoring(ScoreSpec spec, const ModelView& model_view, Done done_in)
    : Scoring(model_view, std::move(done_in)) {
  kind = RequestKind::kScore;
  account.tenant = std::move(spec.tenant);
  account.key = std::move(spec.key);
  account.priority = spec.priority;
  times.deadline = spec.deadline;
  want_logprobs = spec.want_logprobs;
  const auto num_tokens = static_cast<int64_t>(spec.tokens.size());
  account.num_tokens = num_tokens;
  const std::optional<int32_t> bos = model_view.config->bos_token_id;
  const int64_t num_scored = bos ? num_tokens : std::max<int64_t>(0, num_tokens - 1);
  window = spec.window > 0 ? std::min(spec.window, std::max<int64_t>(1, num_scored))
                           : std::max<int64_t>(1, num_scored);
  feed.assign(spec.tokens.begin(), spec.tokens.begin() + num_scored);
  targets.assign(spec.tokens.end() - num_scored, spec.tokens.end());
  if (bos && num_scored > 0) {
    // Every window begins with the bos. It takes the place of the last token of the previous
    // window, which is scored but not fed.
    std::rotate(feed.begin(), feed.end() - 1, feed.end());
    for (int64_t k = 0; k < num_scored; k += window) feed[static_cast<size_t>(k)] = *bos;
  }
  result.num_scored = num_scored;
  Want(spec.output_positions);
}

void Scoring::Want(std::span<const int64_t> positions) {
  for (size_t j = 0; j < positions.size(); ++j) wanted.emplace_back(first_scored + positions[j], j);
  std::sort(wanted.begin(), wanted.end());
  result.outputs.resize(wanted.size());
}

void Scoring::CreateSequences() {
  sequences.push_back(std::make_unique<ScoreSequence>(this));
  open_sequences = 1;
}

void Scoring::OnEnd() {
  if (status.ok()) {
    result.usage = usage;
    result.usage.prompt_tokens = account.num_tokens;
    result.durability = claim.durability;
    done(std::move(result));
  } else {
    done(std::move(status));
  }
}

Appending::Appending(AppendSpec spec_in, const ModelView& model_view, const EngineOptions& options,
                     Done done_in)
    : Scoring(model_view, std::move(done_in)),
      spec_(std::move(spec_in)),
      config_(*model_view.config),
      options_(options) {
  kind = RequestKind::kAppend;
  account.tenant = spec_.session.tenant;
  account.key = spec_.key;
  account.priority = spec_.priority;
  times.deadline = spec_.deadline;
  want_logprobs = spec_.want_logprobs;
  account.num_tokens = static_cast<int64_t>(spec_.tokens.size());
  session_ref = spec_.session;
  if (spec_.cache.enabled) cached.emplace(spec_.cache, account.tenant, config_.has_bos() ? 1 : 0);
}

absl::Status Appending::Begin(SessionTable* table, absl::Time /*now*/) {
  const int64_t bos = config_.has_bos() ? 1 : 0;
  DropStartTokens(*session_ref, *session, spec_.start_tokens, &spec_.tokens);
  RIVULET_ASSIGN_OR_RETURN(const int64_t position,
                           PositionIn(*session, *session_ref, spec_.tokens));
  // Tokens before the appended tokens; the first token of a sequence is scored only after a bos.
  const int64_t before = bos + position;
  const int64_t appended = static_cast<int64_t>(spec_.tokens.size());
  const int64_t unscored = before == 0 ? std::min<int64_t>(1, appended) : 0;
  num_scored_ = spec_.score ? appended - unscored : 0;
  score_from_ = before + unscored - 1;
  for (const int64_t output : spec_.output_positions) {
    if (output < num_scored_) continue;
    return InvalidField(
        "OUTPUT_POSITION_OUT_OF_RANGE", "output_positions",
        absl::StrCat("output_positions holds ", output, "; allowed: at least 0 and below ",
                     num_scored_, ", the number of scored tokens."));
  }
  RIVULET_ASSIGN_OR_RETURN(
      appended_, ExtendSession(*session_ref, spec_.tokens, config_, table->limits(), session));
  return absl::OkStatus();
}

KeptCheckpoint Appending::BestState(PrefixCache* cache) {
  return DeepestState(cache, num_scored_ > 0 ? score_from_ : end());
}

absl::Status Appending::StartFrom(Checkpoint state, SessionTable* /*table*/, absl::Time /*now*/) {
  start = std::move(state);
  feed = FedTokens(sequence_tokens(), config_, start.fed, end());
  window = static_cast<int64_t>(feed.size());
  if (num_scored_ > 0) {
    targets = FedTokens(sequence_tokens(), config_, start.fed + 1, end() + 1);
    first_scored = window - num_scored_;
    result.num_scored = num_scored_;
    Want(spec_.output_positions);
  }
  const int64_t spacing = options_.sessions.checkpoint_tokens;
  std::vector<int64_t> points;
  if (cached) {
    points = cached->Points(start.fed, end(), spacing, options_.prefix_cache.least_gain);
    const int64_t before = session->total() - appended_;
    result.cached_tokens = std::clamp<int64_t>(start.fed - before, 0, appended_);
    usage.cached_prompt_tokens = result.cached_tokens;
  }
  keep = KeepPlan(start.fed, std::move(points), spacing);
  if (feed.empty()) num_slots = 0;
  return absl::OkStatus();
}

void Appending::Settle(const absl::Status& end) {
  if (!end.ok()) {
    session->Rewind(session->position() - appended_);
    return;
  }
  if (!session_ref->mark.empty()) session->Mark(session_ref->mark);
  result.session = {session->position(), session->history.hash(), session->seed};
}

// Counts the window in the slot, which is zeroed when the whole window is fed (OnRunDone).
int64_t ScoreSequence::fed() const {
  return score_->start.fed + (cursor_ > 0 ? (cursor_ - 1) % score_->window + 1 : 0);
}

SequenceView ScoreSequence::View() const {
  SequenceView view;
  const int64_t end = static_cast<int64_t>(score_->feed.size());
  view.prefill_tokens = std::min(end, (cursor_ / score_->window + 1) * score_->window) - cursor_;
  view.prefill_tokens = std::min(view.prefill_tokens, score_->keep.DistanceToNextPoint(fed()));
  view.last_served = last_served;
  return view;
}

void ScoreSequence::FillRow(const RowShare& share, TokenBuffer*, RunRow* run_row) {
  const int tokens = share.tokens;
  const size_t begin = static_cast<size_t>(cursor_);
  const size_t count = static_cast<size_t>(tokens);
  run_row->slot = slot;
  run_row->position = score_->start.fed + cursor_ % score_->window;
  // The request outlives the run: a score ends in OnRunDone, never before.
  run_row->tokens = std::span<const int32_t>(score_->feed).subspan(begin, count);
  if (!score_->targets.empty()) {
    run_row->targets = std::span<const int32_t>(score_->targets).subspan(begin, count);
  }
  outputs_.clear();
  for (; wanted_ < score_->wanted.size(); ++wanted_) {
    const auto& [index, output_index] = score_->wanted[wanted_];
    if (index >= cursor_ + tokens) break;
    std::vector<float>& output = score_->result.outputs[output_index];
    output.resize(static_cast<size_t>(score_->output_size));
    outputs_.push_back({static_cast<int>(index - cursor_), output.data()});
  }
  run_row->outputs = outputs_;
  cursor_ += tokens;
}

void ScoreSequence::OnRecord(Record* record) {
  const int64_t index = scored_++;
  if (index < score_->first_scored) return;
  const bool finite = !record->non_finite && std::isfinite(record->logprob);
  if (!finite && status.ok()) Fail(index, "log-likelihood");
  score_->result.nll_nats -= static_cast<double>(record->logprob);
  if (score_->want_logprobs) score_->result.logprobs.push_back(record->logprob);
}

Sequence::Next ScoreSequence::OnRunDone() {
  const size_t first = wanted_ - outputs_.size();
  for (size_t i = first; i < wanted_ && status.ok(); ++i) {
    const std::vector<float>& output = score_->result.outputs[score_->wanted[i].second];
    const bool finite =
        std::all_of(output.begin(), output.end(), [](float x) { return std::isfinite(x); });
    if (!finite) Fail(score_->wanted[i].first, "output");
  }
  if (status.ok() && !score_->targets.empty() && scored_ != cursor_) {
    status = absl::InternalError("the backend did not score every token of a run");
  }
  finished = !status.ok() || cursor_ == static_cast<int64_t>(score_->feed.size());
  return !finished && cursor_ % score_->window == 0 ? Next::kZero : Next::kContinue;
}

void ScoreSequence::Fail(int64_t index, absl::string_view what) {
  status = NonFiniteError(absl::StrCat("the model's ", what, " for scored token ",
                                       index - score_->first_scored, " is not finite"));
}

}  // namespace rivulet
