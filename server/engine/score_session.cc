// SPDX-License-Identifier: Apache-2.0
#include "server/engine/score_session.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"

namespace rivulet {

ScoreRequest::ScoreRequest(ScoreSpec spec_in, const ModelView& model_view, Done done_in)
    : spec(std::move(spec_in)),
      output_size(model_view.config->output_size()),
      done(std::move(done_in)) {
  deadline = spec.deadline;
  num_tokens = static_cast<int64_t>(spec.tokens.size());
  const std::optional<int32_t> bos = model_view.config->bos_token_id;
  const int64_t given = static_cast<int64_t>(spec.tokens.size());
  num_scored = bos ? given : std::max<int64_t>(0, given - 1);
  window = spec.window > 0 ? std::min(spec.window, std::max<int64_t>(1, num_scored))
                           : std::max<int64_t>(1, num_scored);
  const size_t count = static_cast<size_t>(num_scored);
  targets = std::span<const int32_t>(spec.tokens).last(count);
  feed.assign(spec.tokens.begin(), spec.tokens.begin() + num_scored);
  if (bos && count > 0) {
    // Every window begins with the bos; the token whose place it takes here was the last of the
    // window before, which is scored but not fed.
    std::rotate(feed.begin(), feed.end() - 1, feed.end());
    for (int64_t k = 0; k < num_scored; k += window) feed[static_cast<size_t>(k)] = *bos;
  }
  for (size_t j = 0; j < spec.output_positions.size(); ++j) {
    wanted.emplace_back(spec.output_positions[j], j);
  }
  std::sort(wanted.begin(), wanted.end());
  result.num_scored = num_scored;
  result.outputs.resize(wanted.size());
}

void ScoreRequest::CreateSessions() {
  sessions.push_back(std::make_unique<ScoreSession>(this));
  open_sessions = 1;
}

void ScoreRequest::OnEnd() {
  if (status.ok()) {
    done(std::move(result));
  } else {
    done(std::move(status));
  }
}

SessionView ScoreSession::View() const {
  SessionView view;
  const int64_t window_end =
      std::min(score_->num_scored, (cursor_ / score_->window + 1) * score_->window);
  view.prefill_tokens = window_end - cursor_;
  view.last_served = last_served;
  return view;
}

void ScoreSession::FillRow(int tokens, int, TokenBuffer*, RunRow* run_row) {
  const size_t begin = static_cast<size_t>(cursor_);
  const size_t count = static_cast<size_t>(tokens);
  run_row->slot = slot;
  run_row->position = cursor_ % score_->window;
  // The request outlives the run: a score ends in OnRunDone, never before.
  run_row->tokens = std::span<const int32_t>(score_->feed).subspan(begin, count);
  run_row->targets = score_->targets.subspan(begin, count);
  outputs_.clear();
  for (; wanted_ < score_->wanted.size(); ++wanted_) {
    const auto& [scored_token, index] = score_->wanted[wanted_];
    if (scored_token >= cursor_ + tokens) break;
    std::vector<float>& output = score_->result.outputs[index];
    output.resize(static_cast<size_t>(score_->output_size));
    outputs_.push_back({static_cast<int>(scored_token - cursor_), output.data()});
  }
  run_row->outputs = outputs_;
  cursor_ += tokens;
}

void ScoreSession::OnRecord(Record* record) {
  const bool finite = !record->non_finite && std::isfinite(record->logprob);
  if (!finite && status.ok()) Fail(scored_, "log-likelihood");
  ++scored_;
  score_->result.nll_nats -= static_cast<double>(record->logprob);
  if (score_->spec.want_logprobs) score_->result.logprobs.push_back(record->logprob);
}

Session::Next ScoreSession::OnRunDone() {
  const size_t first = wanted_ - outputs_.size();
  for (size_t i = first; i < wanted_ && status.ok(); ++i) {
    const std::vector<float>& output = score_->result.outputs[score_->wanted[i].second];
    const bool finite =
        std::all_of(output.begin(), output.end(), [](float x) { return std::isfinite(x); });
    if (!finite) Fail(score_->wanted[i].first, "output");
  }
  if (status.ok() && scored_ != cursor_) {
    status = absl::InternalError("the backend did not score every token of a run");
  }
  finished = !status.ok() || cursor_ == score_->num_scored;
  return !finished && cursor_ % score_->window == 0 ? Next::kZero : Next::kContinue;
}

void ScoreSession::Fail(int64_t scored_token, absl::string_view what) {
  status = NonFiniteError(
      absl::StrCat("the model's ", what, " for scored token ", scored_token, " is not finite"));
}

}  // namespace rivulet
