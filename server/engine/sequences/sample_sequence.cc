// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/sample_sequence.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "server/engine/reply_fingerprint.h"
#include "server/engine/sequences/live_session_command.h"
#include "server/engine/sequences/sequence.h"
#include "server/engine/validate.h"

namespace rivulet {

Generation::Generation(GenerateSpec spec_in, Grammar grammar_in, int64_t max_new_tokens,
                       const ModelView& model_view, const EngineOptions& engine_options,
                       ReplyListener* reply_listener)
    : model(model_view),
      options(engine_options),
      spec(std::move(spec_in)),
      max_new(max_new_tokens),
      grammar(std::move(grammar_in)),
      stop_strings(spec.stop_strings),
      reasoning_end(spec.reasoning ? std::vector<std::string>{spec.reasoning->end}
                                   : std::vector<std::string>()),
      listener(reply_listener) {
  account.num_tokens = static_cast<int64_t>(spec.prompt.size());
  account.prediction = static_cast<int64_t>(spec.speculation.prediction.size());
  times.deadline = spec.deadline;
  num_slots = spec.num_samples;
  account.tenant = spec.tenant;
  account.key = spec.key;
  account.priority = spec.priority;
  session_ref = spec.session;
  if (spec.cache.enabled) cached.emplace(spec.cache, account.tenant, bos());
  looks_again = cached.has_value();
  usage.prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  if (spec.resume) {
    for (const std::vector<int32_t>& sample : spec.resume->tokens) {
      usage.completion_tokens += static_cast<int64_t>(sample.size());
    }
    account.num_tokens += usage.completion_tokens;
  }
  claim.knows_session = spec.resume.has_value();
  if (spec.min_tokens > 0) {
    const std::vector<int32_t> ends = EndTokens(spec, *model.config);
    if (!ends.empty()) end_mask_.emplace(ends, model.config->vocab_size);
  }
  if (session_ref) return;
  feed.reserve(spec.prompt.size() + 1);
  if (model.config->has_bos()) feed.push_back(*model.config->bos_token_id);
  feed.insert(feed.end(), spec.prompt.begin(), spec.prompt.end());
}

std::optional<absl::Status> Generation::Prepare() {
  if (!spec.constraint) return absl::OkStatus();
  if (compiled_ == nullptr) compiled_ = options.constraints->Compile(grammar, account.tenant);
  return compiled_->status();
}

absl::Status Generation::Begin(SessionTable* table, absl::Time /*now*/) {
  if (session == nullptr) return absl::OkStatus();
  DropStartTokens(*session_ref, *session, spec.start_tokens, &spec.prompt);
  usage.prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  if (spec.resume) session_ref->hash.reset();  // the fingerprint covers it
  RIVULET_ASSIGN_OR_RETURN(const int64_t position, PositionIn(*session, *session_ref, spec.prompt));
  if (bos() + position == 0 && spec.prompt.empty()) return EmptyPrompt();
  RIVULET_RETURN_IF_ERROR(BeginReplyAt(position));
  RIVULET_ASSIGN_OR_RETURN(
      appended_, ExtendSession(*session_ref, spec.prompt, *model.config, table->limits(), session));
  prompt_end_ = session->position();
  session->abandoned_from = prompt_end_ - appended_;  // should this replica be lost meanwhile
  if (max_new == 0) {
    ReplyDelta nothing;
    nothing.finish.emplace();
    nothing.session = Progress();
    reply->Append(std::move(nothing));
    num_slots = 0;
  }
  return absl::OkStatus();
}

absl::Status Generation::BeginReplyAt(int64_t position) {
  if (spec.session_seed) spec.sampling.seed = session->seed;
  const int64_t given = position + std::ssize(spec.prompt);
  RIVULET_RETURN_IF_ERROR(CheckConstraintBegin(spec, given));
  const NewTokens tokens = MaxNewTokens(spec, given, model, options);
  max_new = tokens.most;
  const uint64_t hash = session->history.HashAt(position);
  const uint64_t fingerprint = ReplyFingerprint(
      SessionFingerprint(model.fingerprint, session->id, position, hash), spec, tokens.asked);
  reply->SetFingerprint(fingerprint);
  if (!spec.resume) return absl::OkStatus();
  session_ref->hash = hash;
  return CheckResume(spec, *model.config, max_new, fingerprint);
}

std::span<const int32_t> Generation::sequence_tokens() const {
  if (session != nullptr) return session->history.tokens();
  return spec.prompt;
}

KeptCheckpoint Generation::BestState(PrefixCache* cache) {
  return num_slots == 0 ? KeptCheckpoint() : DeepestState(cache, total() - 1);
}

absl::Status Generation::StartFrom(Checkpoint state, SessionTable* /*table*/, absl::Time /*now*/) {
  if (num_slots == 0 || (session == nullptr && !cached)) return absl::OkStatus();
  start = std::move(state);
  feed = FedTokens(sequence_tokens(), *model.config, start.fed, total());
  feed_output.clear();
  for (size_t i = 0; session != nullptr && i < feed.size(); ++i) {
    const int64_t index = start.fed + static_cast<int64_t>(i) - bos();
    feed_output.push_back(index >= 0 && session->history.generated(index));
  }
  if (spec.sampling.has_penalties()) {
    const TokenHistory* const generated = session == nullptr ? nullptr : &session->history;
    history = CountTokens(sequence_tokens(), generated, *model.config, start.fed);
  }
  const int64_t spacing = options.sessions.checkpoint_tokens;
  std::vector<int64_t> points;
  if (cached) {
    points = cached->Points(start.fed, total() - 1, spacing, options.prefix_cache.least_gain);
    const int64_t before = session == nullptr ? 0 : prompt_end_ - appended_;
    usage.cached_prompt_tokens =
        std::clamp<int64_t>(start.fed - bos() - before, 0, usage.prompt_tokens);
  }
  keep = KeepPlan(start.fed, std::move(points), session == nullptr ? 0 : spacing);
  return absl::OkStatus();
}

std::optional<SessionProgress> Generation::Progress() const {
  if (session == nullptr) return std::nullopt;
  return SessionProgress{session->position(), session->history.hash(), spec.sampling.seed};
}

absl::string_view Generation::TextOf(int32_t token) const {
  if (model.tokenizer == nullptr) return "";
  if (spec.skip_special_tokens && model.tokenizer->IsSpecial(token)) return "";
  return model.tokenizer->TokenBytes(token);
}

void Generation::Settle(const absl::Status& end) {
  if (session == nullptr) return;
  session->abandoned_from.reset();
  if (end.ok() && !session_ref->mark.empty()) session->Mark(session_ref->mark);
  // Generated tokens stay, so that the client can go on where it lost the reply. Without a
  // generated token the prompt goes, too, unless it was given before: the request had no effect.
  const int64_t begin = prompt_end_ - appended_;
  if (!end.ok() && session->position() == prompt_end_) {
    session->Rewind(begin);
  } else if (absl::IsCancelled(end)) {
    session->abandoned_from = begin;
  }
}

void Generation::CreateSequences() {
  for (int i = 0; i < num_slots; ++i)
    sequences.push_back(std::make_unique<SampleSequence>(this, i));
  open_sequences = num_slots;
}

bool Generation::reader_slow() {
  // Asks the reply only while it is slow, because a lock in every step costs too much.
  if (reader_slow_) reader_slow_ = reply->pending_bytes() > options.max_pending_bytes;
  return reader_slow_;
}

void Generation::SetWake(std::function<void()> wake) {
  reply->SetWake(options.max_pending_bytes, std::move(wake));
}

void Generation::DescribeProgress(ErrorDetail* detail) const {
  if (session != nullptr) {
    detail->metadata["session_id"] = session->id.ToString();
    detail->metadata["session_position"] = absl::StrCat(session->position());
    return;
  }
  if (session_ref) return;  // there is no such session
  const auto append_tokens = [](std::string* out, const auto& sample) {
    absl::StrAppend(out, static_cast<const SampleSequence&>(*sample).delivered());
  };
  detail->metadata["sent_tokens"] =
      sequences.empty() ? "0" : absl::StrJoin(sequences, ",", append_tokens);
}

void Generation::OnEnd() {
  reply->Finish({std::move(status), usage, claim.durability});
  listener->OnReady();
}

const TokenMask* Generation::EndMaskAfter(int64_t drawn) const {
  return drawn < spec.min_tokens && end_mask_ ? &*end_mask_ : nullptr;
}

std::unique_ptr<ConstraintMatcher> Generation::NewMatcher(std::span<const int32_t> resumed) const {
  if (compiled_ == nullptr) return nullptr;
  const std::span<const int32_t> all = sequence_tokens();
  const auto begin = static_cast<size_t>(spec.constraint->begin_position.value_or(std::ssize(all)));
  MatcherSpec matcher;
  matcher.forced = !spec.want_logprobs;  // which only a draw has
  matcher.end_tokens = EndTokens(spec, *model.config);
  matcher.after = spec.constraint->after;
  for (size_t i = begin; i > 0 && matcher.before.size() < 4 * kMaxAfterBytes; --i) {
    matcher.before.insert(0, std::string(model.tokenizer->TokenBytes(all[i - 1])));
  }
  std::unique_ptr<ConstraintMatcher> made = compiled_->NewMatcher(matcher);
  std::vector<int32_t> written(all.begin() + static_cast<ptrdiff_t>(begin), all.end());
  written.insert(written.end(), resumed.begin(), resumed.end());
  made->Push(written);
  return made;
}

namespace {

// The error for a constraint whose text cannot go on.
absl::Status DeadEnd() {
  ErrorDetail detail;
  detail.reason = "CONSTRAINT_DEAD_END";
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   "No token of the model's vocabulary continues the constraint's text.", detail);
}

// Tokens of `feed` that are fed before decoding begins: without the last token if the state before
// it is for several samples, or is to be kept.
int64_t PrefillEnd(const Generation& request) {
  const int64_t size = static_cast<int64_t>(request.feed.size());
  const bool shared = request.num_slots > 1 || request.keep.HasPoint(request.start.fed + size - 1);
  return size - (shared ? 1 : 0);
}

}  // namespace

int32_t BeforeDraw::token(int64_t i) const {
  const auto index = static_cast<size_t>(i), size = request.feed.size();
  return index < size ? request.feed[index] : more[index - size];
}

bool BeforeDraw::is_output(int64_t i) const {
  if (i >= static_cast<int64_t>(request.feed.size())) return true;
  return !request.feed_output.empty() && request.feed_output[static_cast<size_t>(i)];
}

SampleSequence::SampleSequence(Generation* owner, int index)
    : Sequence(owner),
      generate_(owner),
      index_(index),
      prefill_end_(PrefillEnd(*owner)),
      position_(owner->start.fed),
      before_{*owner},
      matcher_(&owner->stop_strings),
      constraint_(nullptr, false) {
  out_.sample_index = index;
  if (const TextTokenizer* tokenizer = owner->model.tokenizer) {
    decoder_.emplace(tokenizer, DecodeOptions());
    const std::optional<Reasoning>& reasoning = owner->spec.reasoning;
    if (reasoning) reasoning_.emplace(reasoning->begin, &owner->reasoning_end);
  }
  const bool whole_prompt = prefill_end_ == before_.end();
  if (owner->spec.resume) Resume(owner->spec.resume->tokens[static_cast<size_t>(index)]);
  constraint_ = SampleConstraint(owner->NewMatcher(before_.more), owner->model.late_masks);
  if (owner->model.max_drafts > 0 && owner->spec.speculation.drafts != 0) {
    drafter_.emplace(owner->spec.speculation);
    for (const int32_t token : before_.more) drafter_->OnDrawn(token);
  }
  if (whole_prompt) prefill_end_ = before_.end();
  if (prefill_end_ == 0) {
    StartDecoding();
  } else if (index > 0) {
    phase_ = Phase::kWaitForFork;
  }
}

void SampleSequence::Resume(std::span<const int32_t> received) {
  delivered_ = skipped_ = static_cast<int64_t>(received.size());
  // One ahead of matcher_. Among the first min_tokens tokens a match is no end: the rest is drawn.
  StopMatcher ends(&generate_->stop_strings);
  for (const int32_t token : received) {
    const absl::string_view text = generate_->TextOf(token);
    const bool matches = !generate_->stop_strings.empty() && ends.Push(text).match >= 0;
    if (matches || drawn_ + 1 == generate_->max_new) return;
    ++drawn_;
    before_.more.push_back(token);
    Keep({token, text, 0, {}});
  }
}

void SampleSequence::StartDecoding() {
  position_ = generate_->start.fed + prefill_end_;
  if (!before_.more.empty()) {
    phase_ = Phase::kPrefill;
    cursor_ = prefill_end_;
    prefill_end_ = before_.end();
    return;
  }
  phase_ = Phase::kDecode;
  next_.token = generate_->feed.back();
  next_.is_output = before_.is_output(static_cast<int64_t>(generate_->feed.size()) - 1);
}

const Sequence* SampleSequence::copies_from() const {
  const bool waits = phase_ == Phase::kWaitForFork;
  const bool from_state = generate_->start.state != nullptr;
  return index_ > 0 && from_state && !waits ? generate_->sequences[0].get() : nullptr;
}

SequenceView SampleSequence::View() const {
  SequenceView view;
  if (prefills()) {
    int64_t end = prefill_end_;
    const int64_t room = generate_->keep.DistanceToNextPoint(position_);
    if (room < end - cursor_) end = cursor_ + room;
    const int64_t last = end;
    if (generate_->spec.sampling.has_penalties()) {
      // Penalties count prompt and output apart, and a row's tokens are all of one kind.
      for (end = cursor_ + 1; end < last; ++end) {
        if (before_.is_output(end) != before_.is_output(cursor_)) break;
      }
    }
    view.prefill_tokens = end - cursor_;
  }
  view.last_served = last_served;
  view.constrained = static_cast<bool>(constraint_);
  view.forced = phase_ == Phase::kForced;
  view.single_step = !generate_->stop_strings.empty() || view.constrained ||
                     generate_->EndMaskAfter(drawn_) != nullptr;
  view.steps_left = generate_->max_new - drawn_;
  if (drafter_) view.drafts = drafter_->View(DraftRoom());
  return view;
}

int64_t SampleSequence::DraftRoom() const {
  if (!constraint_.MayDraft()) return 0;
  return std::min({int64_t{generate_->model.max_drafts}, generate_->max_new - drawn_ - 1,
                   generate_->keep.DistanceToNextPoint(position_) - 1});
}

void SampleSequence::AddDrafts(int most, TokenBuffer* buffer, RunRow* run_row) {
  const size_t begin = buffer->size();
  drafter_->AddDrafts(most, buffer);
  // A draft that completes a stop string is drawn, and ends the sample: nothing is fed behind it.
  StopMatcher ends = matcher_;
  for (size_t i = begin; i < buffer->size(); ++i) {
    const int32_t draft = (*buffer)[i];
    const int64_t before = drawn_ + static_cast<int64_t>(i - begin);
    const bool matches = !generate_->stop_strings.empty() && before >= generate_->spec.min_tokens &&
                         ends.Push(generate_->TextOf(draft)).match >= 0;
    if (matches || (i == begin && !constraint_.Allows(draft))) {
      buffer->resize(i);
      break;
    }
    if (!constraint_) drafter_->masks.push_back(generate_->EndMaskAfter(before + 1));
  }
  if (constraint_ && buffer->size() > begin) {
    constraint_.Try(std::span(*buffer).subspan(begin), &drafter_->masks);
  }
  run_row->drafts = drafter_->drafts();
  run_row->draft_masks = drafter_->masks;
  generate_->usage.drafted_tokens += run_row->drafts;
}

// The counts of all tokens fed to the slot.
std::vector<TokenCount> SampleSequence::History() const {
  if (!generate_->spec.sampling.has_penalties()) return {};
  if (phase_ == Phase::kWaitForFork) return {};  // the counts come with the state
  TokenCounts counts(generate_->history);
  // The next tokens to feed are not in the slot yet: from the prompt, or the last drawn token.
  int64_t fed_prompt = cursor_;
  if (phase_ == Phase::kDecode) {
    const bool has_drawn = drawn_ > static_cast<int64_t>(before_.more.size());
    fed_prompt = before_.end() - (has_drawn ? 0 : 1);
  }
  for (int64_t i = 0; i < fed_prompt; ++i) {
    counts.Add(before_.token(i), before_.is_output(i));
  }
  for (size_t i = 0; i + 1 < drawn_tokens_.size(); ++i) counts.Add(drawn_tokens_[i], true);
  return counts.All();
}

std::optional<SlotSampler> SampleSequence::Sampler() const {
  const GenerateSpec& spec = generate_->spec;
  SlotSampler sampler;
  sampler.params = spec.sampling;
  sampler.sample_index = static_cast<uint32_t>(index_);
  sampler.stop_ids = EndTokens(spec, *generate_->model.config);
  sampler.want_logprobs = spec.want_logprobs;
  sampler.num_top_logprobs = spec.num_top_logprobs;
  if (!host_state.empty()) {
    sampler.history = History();
  } else if (index_ == 0) {
    sampler.history = generate_->history;  // the other samples get its counts
  }
  return sampler;
}

void SampleSequence::FillRow(const RowShare& share, TokenBuffer* buffer, RunRow* run_row) {
  int tokens = share.tokens;
  const size_t begin = buffer->size();
  if (drafter_) drafter_->BeginRow(generate_->given(), share.few_rows);
  if (constraint_.late()) {
    tokens = 0;
    run_row->sample = true;
  } else if (phase_ == Phase::kDecode) {
    buffer->push_back(next_.token);
    run_row->count_as_output = next_.is_output;
    run_row->sample = true;
    if (share.drafts > 0) AddDrafts(share.drafts, buffer, run_row);
    run_row->guesses = share.guesses;
  } else {
    run_row->count_as_output = before_.is_output(cursor_);
    for (int i = 0; i < tokens; ++i) buffer->push_back(before_.token(cursor_++));
    run_row->sample = cursor_ == before_.end();
  }
  run_row->slot = slot;
  run_row->position = position_;
  run_row->tokens = std::span<const int32_t>(buffer->data() + begin, buffer->size() - begin);
  if (run_row->sample) {
    run_row->mask = constraint_ ? constraint_.mask() : generate_->EndMaskAfter(drawn_);
    run_row->max_samples = static_cast<int>(
        std::min<int64_t>(share.steps + run_row->drafts, generate_->max_new - drawn_));
  }
  position_ += tokens;
  drawn_in_run_ = 0;
}

void SampleSequence::OnRecord(Record* record) {
  if (finished) return;
  if (drawn_in_run_++ > 0) {  // the token drawn before it was fed within the run
    ++position_;
    if (drafter_ && drafter_->drafts() > 0) ++generate_->usage.accepted_tokens;
  }
  phase_ = Phase::kDecode;
  if (record->late && constraint_) return constraint_.OnLate();
  Write(record);
  if (drafter_) drafter_->OnGuesses(std::move(record->guesses));
  if (!finished) constraint_.OnDrawn(next_.token);
}

void SampleSequence::Write(Record* record) {
  next_.token = record->token;
  next_.is_output = true;
  ++drawn_;
  if (drafter_) drafter_->OnDrawn(record->token);
  if (generate_->spec.sampling.has_penalties()) drawn_tokens_.push_back(record->token);
  const bool bad_token = record->token < 0 || record->token >= generate_->model.config->vocab_size;
  if (record->non_finite || bad_token) {
    finished = true;
    status = NonFiniteError(absl::StrCat("the model's output for generated token ", drawn_ - 1,
                                         " of sample ", index_, " is not finite"));
    return;
  }
  if (record->stopped) {
    out_.finish.emplace();
    out_.finish->stop_token = record->token;
    End(FinishReason::kStopToken);
    return;
  }
  Keep({record->token, generate_->TextOf(record->token), record->logprob, std::move(record->top)});
  if (!finished && drawn_ == generate_->max_new) End(FinishReason::kLength);
}

bool SampleSequence::TakeKnown(int64_t* forced) {
  using Kind = ConstraintStep::Kind;
  const ConstraintStep* const step = finished ? nullptr : constraint_.Take();
  if (step == nullptr) return false;
  const int64_t before = drawn_;
  if (!step->forced.empty()) WriteForced(step->forced);
  *forced += drawn_ - before;
  if (finished) return true;
  if (step->kind == Kind::kEnd) {
    End(FinishReason::kConstraint);
  } else if (step->kind != Kind::kChoice) {
    finished = true;
    status = step->kind == Kind::kFailed ? step->status : DeadEnd();
  }
  return finished || !step->forced.empty();
}

void SampleSequence::WriteForced(std::span<const int32_t> forced) {
  std::vector<int32_t> unfed;
  if (!constraint_.late()) unfed.push_back(next_.token);
  for (const int32_t token : forced) {
    Record record;
    record.token = token;
    Write(&record);
    if (finished) return;
    unfed.push_back(token);
  }
  // Penalties count the tokens in their order.
  const std::vector<int32_t>& given = drawn_tokens_.empty() ? unfed : drawn_tokens_;
  before_.more.insert(before_.more.end(), given.begin(), given.end());
  drawn_tokens_.clear();
  constraint_.OnFeed();
  phase_ = Phase::kForced;
  prefill_end_ = before_.end();
  cursor_ = prefill_end_ - std::ssize(unfed);
}

bool SampleSequence::ended_at_limit() const {
  const std::optional<int64_t> limit = generate_->model.config->max_tokens();
  const bool at_length = finished && status.ok() && drawn_ == generate_->max_new;
  return limit && at_length && generate_->total() - generate_->bos() + drawn_ >= *limit;
}

void SampleSequence::Keep(HeldToken token) {
  if (generate_->stop_strings.empty() || drawn_ <= generate_->spec.min_tokens) {
    Deliver(&token);
    return;
  }
  const StopMatcher::Result result = matcher_.Push(token.text);
  held_.push_back(std::move(token));
  Release(result.release);
  if (result.match >= 0) EndAtMatch(result);
}

// The text ends where the stop string begins (or ends, if it is to be kept). The rest of the text
// of the token at that place, and all later tokens, are dropped.
void SampleSequence::EndAtMatch(const StopMatcher::Result& result) {
  int64_t room = generate_->spec.include_stop_string ? result.end : result.begin;
  size_t kept = 0;
  for (; kept < held_.size() && room > 0; ++kept) {
    absl::string_view& text = held_[kept].text;
    text = text.substr(0, static_cast<size_t>(room));
    room -= static_cast<int64_t>(text.size());
  }
  held_.resize(kept);
  out_.finish.emplace();
  out_.finish->stop_string = generate_->stop_strings[static_cast<size_t>(result.match)];
  End(FinishReason::kStopString);
}

void SampleSequence::Release(int count) {
  const auto end = held_.begin() + count;
  for (auto token = held_.begin(); token != end; ++token) Deliver(&*token);
  held_.erase(held_.begin(), end);
}

void SampleSequence::Deliver(HeldToken* token) {
  const bool is_new = skipped_ == 0;
  if (generate_->session != nullptr) generate_->session->history.Append(token->token, true);
  if (reasoning_) {
    const int64_t before = reasoning_->tokens();
    reasoning_->Add(generate_->model.tokenizer->TokenBytes(token->token));
    generate_->usage.reasoning_tokens += reasoning_->tokens() - before;
  }
  std::string sent;
  if (decoder_) decoder_->AddBytes(token->text, is_new ? &out_.text : &sent);
  if (!is_new) {
    --skipped_;
    return;
  }
  out_.tokens.push_back(token->token);
  if (generate_->spec.want_logprobs) out_.logprobs.push_back(token->logprob);
  if (generate_->spec.num_top_logprobs > 0) out_.top_logprobs.push_back(std::move(token->top));
}

void SampleSequence::End(FinishReason reason) {
  Release(static_cast<int>(held_.size()));
  if (decoder_) decoder_->Finish(&out_.text);
  if (!out_.finish) out_.finish.emplace();
  out_.finish->reason = reason;
  finished = true;
}

bool SampleSequence::Flush() {
  if (out_.tokens.empty() && !out_.finish) return false;
  const int64_t count = static_cast<int64_t>(out_.tokens.size());
  out_.first_position = delivered_;
  out_.session = generate_->Progress();
  delivered_ += count;
  generate_->usage.completion_tokens += count;
  const int64_t pending = generate_->reply->Append(std::exchange(out_, ReplyDelta()));
  out_.sample_index = index_;
  generate_->reader_slow_ = pending > generate_->options.max_pending_bytes;
  return true;
}

Sequence::Next SampleSequence::OnRunDone() {
  if (drafter_ && drafter_->drafts() > 0) {
    // After a late draw the next draft was not judged.
    const int right = drawn_in_run_ - 1;
    drafter_->Note(constraint_.late() ? right : drafter_->drafts(), right);
  }
  if (prefills() && cursor_ == before_.end() && !finished) {
    finished = true;
    status = absl::InternalError("the backend drew no token in a run that ended the prompt");
  }
  const bool fork = prefills() && cursor_ == prefill_end_ && !finished;
  return fork ? Next::kFork : Next::kContinue;
}

}  // namespace rivulet
