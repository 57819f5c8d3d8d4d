// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/truth.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sessions/sequence_hash.h"
#include "tests/support/text_of.h"

namespace rivulet {
namespace {

bool Wanted(const std::vector<int64_t>& positions, int64_t i) {
  return std::find(positions.begin(), positions.end(), i) != positions.end();
}

// Whether a request that is refused for `reason`, or not, names a place in the session.
bool HasPlace(const std::string& reason) {
  return reason != "SESSION_HASH_MISMATCH" && reason != "POSITION_OUT_OF_RANGE";
}

// FakeConstraints fails on this choice, which no reply can spell.
bool FailsToCompile(const GenerateSpec& spec) {
  if (!spec.constraint) return false;
  const std::vector<std::string>& choices = spec.constraint->choices;
  return std::find(choices.begin(), choices.end(), "fail") != choices.end();
}

}  // namespace

uint64_t SessionState::hash() const { return HashTokens(kEmptySequenceHash, tokens); }

void SessionState::Append(int32_t token, bool was_generated) {
  tokens.push_back(token);
  generated.push_back(was_generated);
}

void SessionState::Cut(int64_t size) {
  abandoned_from.reset();
  tokens.resize(static_cast<size_t>(size));
  generated.resize(static_cast<size_t>(size));
  std::erase_if(marks, [size](const auto& mark) { return mark.second > size; });
}

FakeHistory Truth::Fed(const SessionState& session, int64_t fed) const {
  FakeHistory history = Fresh();
  if (world_.bos() == 1 && fed > 0) history.Feed(*world_.config.bos_token_id, false);
  for (size_t i = 0; static_cast<int64_t>(i) < fed - world_.bos(); ++i) {
    history.Feed(session.tokens[i], session.generated[i]);
  }
  return history;
}

int64_t Truth::MaxNew(const GenerateSpec& spec, int64_t given) const {
  const std::optional<int64_t> limit = world_.config.max_tokens(),
                               of_model = world_.config.model_max_tokens();
  int64_t most = spec.max_tokens;
  if (most == 0) most = of_model ? *of_model - given : world_.options.default_max_tokens;
  most = std::min(most, limit.value_or(given + most) - given);
  if (spec.session) most = std::min(most, world_.options.sessions.max_tokens - given);
  return std::max<int64_t>(0, most);
}

// How many sessions a tenant may have that has `own` of `all`.
int64_t Truth::MostSessions(int all, int own) const {
  const SessionLimits& limits = world_.options.sessions;
  if (limits.max_tenant_sessions > 0) return limits.max_tenant_sessions;
  int64_t most = own;  // one after another, while it has less than 7 times what is left
  while (most < 7 * (limits.max_open_sessions - all - (most - own))) ++most;
  return most;
}

// The first token with which the text ends in a stop string ends the sample; of several, the one
// that begins earliest counts. Tokens are dropped whole.
bool Truth::MatchStop(const GenerateSpec& spec, Drawn* drawn) const {
  if (spec.stop_strings.empty()) return false;
  std::string text;
  std::vector<size_t> ends;
  for (size_t i = 0; i < drawn->tokens.size(); ++i) {
    const bool looks = std::cmp_greater_equal(i, spec.min_tokens);
    if (looks) text += std::string(world_.tokenizer->TokenBytes(drawn->tokens[i]));
    ends.push_back(text.size());
  }
  if (ends.size() > 1 && ends.back() == ends[ends.size() - 2]) return false;  // no text of its own
  const std::string* match = nullptr;
  for (const std::string& stop : spec.stop_strings) {
    const bool here = text.size() >= stop.size() && text.ends_with(stop);
    if (here && (match == nullptr || stop.size() > match->size())) match = &stop;
  }
  if (match == nullptr) return false;
  drawn->finish = {FinishReason::kStopString, *match, -1};
  if (spec.include_stop_string) return true;
  const auto overlap = std::upper_bound(ends.begin(), ends.end(), text.size() - match->size());
  drawn->tokens.resize(static_cast<size_t>(overlap - ends.begin()));
  drawn->logprobs.resize(drawn->tokens.size());
  return true;
}

// Sets `mask` to what may follow `text` under the constraint; true: nothing, and `drawn` says why.
bool Truth::EndsText(const GenerateSpec& spec, const std::string& text,
                     std::span<const int32_t> stops, std::vector<uint32_t>* mask,
                     Drawn* drawn) const {
  const std::vector<std::string>& choices = spec.constraint->choices;
  const auto is = [&](const std::string& choice) { return choice == text; };
  const bool complete = std::any_of(choices.begin(), choices.end(), is);
  mask->assign(MaskWords(world_.config.vocab_size), 0);
  const auto allow = [mask](int32_t token) {
    (*mask)[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
  };
  bool goes_on = false;
  for (int32_t token = 0; token < world_.letters; ++token) {
    const std::string next = text + std::string(world_.tokenizer->TokenBytes(token));
    const auto begins = [&](const std::string& choice) { return choice.starts_with(next); };
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) continue;
    if (!std::any_of(choices.begin(), choices.end(), begins)) continue;
    allow(token);
    goes_on = true;
  }
  if (goes_on) {
    for (size_t i = 0; complete && i < stops.size(); ++i) allow(stops[i]);
  } else if (complete) {
    drawn->finish = {FinishReason::kConstraint, "", -1};
  } else {
    drawn->error = "CONSTRAINT_DEAD_END";
  }
  return !goes_on;
}

Drawn Truth::Draw(const SessionState& from, const GenerateSpec& spec, uint32_t sample) const {
  SlotSampler sampler;
  sampler.params = spec.sampling;
  sampler.sample_index = sample;
  std::vector<int32_t> stops = spec.stop_ids;
  if (world_.config.eos_token_id && !spec.ignore_eos) stops.push_back(*world_.config.eos_token_id);
  FakeHistory history = Fed(from, world_.bos() + from.size());
  Drawn drawn;
  std::string text;
  std::vector<uint32_t> mask;
  for (int64_t left = MaxNew(spec, from.size()); left > 0; --left) {
    if (spec.constraint && EndsText(spec, text, stops, &mask, &drawn)) return drawn;
    if (history.count == world_.fake.non_finite_draw_position) return drawn;
    int32_t token = FakeDraw(world_.config, world_.fake.script, history, sampler);
    if (spec.constraint) {
      token = FakeMasked(token, world_.config.vocab_size, mask);
      text += std::string(world_.tokenizer->TokenBytes(token));
    }
    const auto ends = [&] { return std::find(stops.begin(), stops.end(), token) != stops.end(); };
    while (std::ssize(drawn.tokens) < spec.min_tokens && ends()) {  // as FakeMasked goes on
      token = (token + 1) % world_.config.vocab_size;
    }
    if (ends()) {
      drawn.finish = {FinishReason::kStopToken, "", token};
      return drawn;
    }
    drawn.tokens.push_back(token);
    drawn.logprobs.push_back(history.Logprob(token));
    if (MatchStop(spec, &drawn)) return drawn;
    history.Feed(token, true);
  }
  drawn.finish.emplace();  // kLength
  return drawn;
}

std::string Truth::Extend(const SessionRef& ref, std::span<const int32_t> tokens,
                          SessionState* session, int64_t* appended) const {
  int64_t position = ref.position.value_or(session->size());
  int64_t count = static_cast<int64_t>(tokens.size());
  const bool within = position >= 0 && position <= session->size();
  bool given_before = within && count <= session->size() - position;
  for (int64_t i = 0; given_before && i < count; ++i) {
    const size_t at = static_cast<size_t>(position + i);
    given_before = !session->generated[at] && session->tokens[at] == tokens[size_t(i)];
  }
  SessionState before = *session;
  if (ref.position && within) before.Cut(position);
  const bool abandoned = session->abandoned_from && ref.hash && ref.position && within &&
                         position >= *session->abandoned_from && before.hash() == *ref.hash;
  if (ref.hash && *ref.hash != session->hash() && !abandoned) {
    // Another has continued it, unless it is asked again.
    const bool done = given_before && count > 0 && position + count == session->size();
    if (before.hash() != *ref.hash || !(done || ref.repeated)) return "SESSION_HASH_MISMATCH";
  }
  if (given_before) {  // asked again: given once
    position += count;
    count = 0;
  }
  if (!within) return "POSITION_OUT_OF_RANGE";
  const auto beyond = session->generated.begin() + position;
  if (!abandoned &&
      std::find(beyond, session->generated.end(), false) != session->generated.end()) {
    return "GIVEN_TOKENS_BEYOND_POSITION";
  }
  const SessionLimits& limits = world_.options.sessions;
  const int64_t longest = world_.config.max_tokens().value_or(limits.max_tokens);
  if (position + count > std::min(longest, limits.max_tokens)) return "TOO_MANY_TOKENS";
  if (!ref.mark.empty() && !session->marks.contains(ref.mark) &&
      session->marks.size() >= static_cast<size_t>(limits.max_marks)) {
    return "MARK_LIMIT";
  }
  session->Cut(position);
  *appended = count;
  for (int64_t i = 0; i < count; ++i) session->Append(tokens[size_t(i)], false);
  return "";
}

std::string Truth::JudgeSample(const Drawn& drawn, const GenerateSpec& spec, const SeenReply& seen,
                               const SeenSample& sample) const {
  const size_t count = sample.tokens.size();
  if (count > drawn.tokens.size() ||
      !std::equal(sample.tokens.begin(), sample.tokens.end(), drawn.tokens.begin())) {
    return "tokens are not a prefix of the lone session's";
  }
  if (spec.want_logprobs &&
      !(sample.logprobs.size() == count &&
        std::equal(sample.logprobs.begin(), sample.logprobs.end(), drawn.logprobs.begin()))) {
    return "wrong logprobs";
  }
  if (world_.tokenizer && sample.text != testing::TextOf(*world_.tokenizer, sample.tokens)) {
    return "the text is not that of the tokens";
  }
  if (seen.status.ok() && !sample.finish) return "ended well without a finish";
  if (!sample.finish) return "";
  if (count < drawn.tokens.size()) return "finished early";
  if (!drawn.finish) return "finished where no finite output was";
  const bool same = sample.finish->reason == drawn.finish->reason &&
                    sample.finish->stop_string == drawn.finish->stop_string &&
                    sample.finish->stop_token == drawn.finish->stop_token;
  return same ? "" : "finished for another reason";
}

std::string Truth::Judge(const GenerateSpec& spec, const SeenReply& seen) const {
  SessionState prompt;
  for (const int32_t token : spec.prompt) prompt.Append(token, false);
  bool explained = FailsToCompile(spec) && ReasonOf(seen.status) == "CONSTRAINT_TOO_HARD";
  for (size_t s = 0; s < seen.samples.size(); ++s) {
    const Drawn drawn = Draw(prompt, spec, static_cast<uint32_t>(s));
    explained |= !drawn.finish && ReasonOf(seen.status) == drawn.error;
    const std::string wrong = JudgeSample(drawn, spec, seen, seen.samples[s]);
    if (!wrong.empty()) return absl::StrCat("sample ", s, ": ", wrong);
  }
  if (seen.status.ok() || EndedFromOutside(seen.status)) return "";
  return explained ? "" : "no reason for its error";
}

std::vector<SessionState> Truth::After(const SessionState& session, uint64_t seed,
                                       const GenerateSpec& asked, const SeenReply& seen) const {
  GenerateSpec spec = asked;
  if (spec.session_seed) spec.sampling.seed = seed;
  const std::vector<int32_t>& tokens = seen.samples[0].tokens;
  const size_t had = spec.resume ? spec.resume->tokens[0].size() : 0;
  const bool outside = EndedFromOutside(seen.status);
  std::vector<SessionState> possible(outside && tokens.size() == had ? 1 : 0, session);
  SessionState begun = session;
  int64_t appended = 0;
  std::string reason = Extend(*spec.session, spec.prompt, &begun, &appended);
  if (spec.resume && reason == "SESSION_HASH_MISMATCH") {
    const bool within = *spec.session->position <= session.size();
    reason = within ? "RESUME_MISMATCH" : "POSITION_OUT_OF_RANGE";
  }
  const bool first = world_.bos() == 0 && spec.session->position.value_or(session.size()) == 0;
  if (first && spec.prompt.empty() && HasPlace(reason)) reason = "PROMPT_EMPTY";
  if (!reason.empty()) {
    if (ReasonOf(seen.status) == reason) possible.push_back(session);
    return possible;
  }
  const Drawn drawn = Draw(begun, spec, 0);
  if (!JudgeSample(drawn, spec, seen, seen.samples[0]).empty()) return possible;
  if (!seen.status.ok() && !outside && (drawn.finish || ReasonOf(seen.status) != drawn.error)) {
    return possible;
  }
  for (const auto& [count, progress] : seen.progress) {
    SessionState then = begun;
    for (int64_t i = 0; i < count; ++i) then.Append(tokens[size_t(i)], true);
    if (progress.position != then.size() || progress.hash != then.hash() ||
        progress.seed != spec.sampling.seed) {
      return possible;
    }
  }
  const int64_t begin = begun.size() - appended;
  const bool nothing_new = !seen.status.ok() && tokens.size() == had;
  if (nothing_new) {
    SessionState cut = begun;
    cut.Cut(begin);  // no effect, except on tokens beyond the position
    if (possible.empty() || possible[0] != cut) possible.push_back(cut);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    begun.Append(tokens[i], true);
    if (absl::IsCancelled(seen.status)) begun.abandoned_from = begin;
    // What the client has is in the session as soon as the request has slots, except an end of it.
    if (nothing_new) possible.push_back(begun);
  }
  if (nothing_new) return possible;
  if (seen.status.ok() && !spec.session->mark.empty()) {
    begun.marks[spec.session->mark] = begun.size();
  }
  return {begun};
}
std::vector<SessionState> Truth::After(const SessionState& session, uint64_t seed,
                                       const AppendSpec& spec,
                                       const absl::StatusOr<ScoreResult>& seen) const {
  const bool outside = EndedFromOutside(seen.status());
  std::vector<SessionState> possible(outside ? 1 : 0, session);  // its turn may not have come
  SessionState begun = session;
  int64_t appended = 0;
  const int64_t position = spec.session.position.value_or(session.size());
  const int64_t before = world_.bos() + std::clamp<int64_t>(position, 0, session.size());
  const int64_t count = static_cast<int64_t>(spec.tokens.size());
  const int64_t first = before + (before == 0 ? std::min<int64_t>(1, count) : 0);
  const int64_t num_scored = spec.score ? before + count - first : 0;
  std::string reason = Extend(spec.session, spec.tokens, &begun, &appended);
  for (const int64_t wanted : spec.output_positions) {
    if (HasPlace(reason) && wanted >= num_scored) reason = "OUTPUT_POSITION_OUT_OF_RANGE";
  }
  if (!reason.empty()) {
    if (ReasonOf(seen.status()) == reason) possible.push_back(session);
    return possible;
  }
  const std::optional<ScoreResult> want = ScoreSequence(begun, first, num_scored, spec);
  if (!seen.ok()) {
    if (!outside && (want || ReasonOf(seen.status()) != "NON_FINITE_OUTPUT")) return possible;
    begun.Cut(begun.size() - appended);
    if (possible.empty() || possible[0] != begun) possible.push_back(begun);
    return possible;
  }
  if (!want || !SameScore(*want, *seen)) return possible;
  if (!spec.session.mark.empty()) begun.marks[spec.session.mark] = begun.size();
  const SessionProgress& progress = *seen->session;
  if (progress.position == begun.size() && progress.hash == begun.hash() && progress.seed == seed) {
    possible.push_back(begun);
  }
  return possible;
}

bool Truth::ScoreToken(const FakeHistory& before, int32_t token, bool want_logprob,
                       bool want_output, ScoreResult* result) const {
  const float logprob = before.Logprob(token);
  ++result->num_scored;
  result->nll_nats -= static_cast<double>(logprob);
  if (want_logprob) result->logprobs.push_back(logprob);
  if (want_output) {
    std::vector<float>& output = result->outputs.emplace_back();
    for (int i = 0; i < world_.config.output_size(); ++i) output.push_back(before.Logprob(i));
  }
  return before.count != world_.fake.nan_score_position &&
         !(want_output && before.count == world_.fake.nan_output_position);
}

std::optional<ScoreResult> Truth::ScoreSequence(const SessionState& session, int64_t first,
                                                int64_t count, const AppendSpec& spec) const {
  ScoreResult result;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite &= ScoreToken(Fed(session, first + i), session.tokens[size_t(first + i - world_.bos())],
                         spec.want_logprobs, Wanted(spec.output_positions, i), &result);
  }
  return finite ? std::make_optional(std::move(result)) : std::nullopt;
}

std::optional<ScoreResult> Truth::Score(const ScoreSpec& spec) const {
  ScoreResult result;
  bool finite = true;
  FakeHistory history = Fresh();
  const size_t skipped = world_.bos() == 1 ? 0 : std::min<size_t>(1, spec.tokens.size());
  for (size_t k = 0; k + skipped < spec.tokens.size(); ++k) {
    const bool fresh = k == 0 || (spec.window > 0 && k % static_cast<size_t>(spec.window) == 0);
    if (fresh) history = Fresh();
    const bool feeds_bos = fresh && world_.bos() == 1;
    history.Feed(feeds_bos ? *world_.config.bos_token_id : spec.tokens[k + skipped - 1], false);
    finite &= ScoreToken(history, spec.tokens[k + skipped], spec.want_logprobs,
                         Wanted(spec.output_positions, static_cast<int64_t>(k)), &result);
  }
  return finite ? std::make_optional(std::move(result)) : std::nullopt;
}

}  // namespace rivulet
