// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/result_judge.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace rivulet::simulated {

ResultJudge::ResultJudge(const World& world, const TurnClock& clock, StatusJudge* status,
                         Requests* requests, Clients* clients, Journal* journal)
    : world_(world),
      clock_(clock),
      status_(status),
      requests_(requests),
      clients_(clients),
      journal_(journal) {
  for (const WarmState& warm : world.warm) {
    const auto begin = warm.tokens.begin();
    shared_.OfferToAll({begin, begin + (warm.fed - world.bos())});
  }
}

void ResultJudge::JudgeReplicated(const Asked& asked, const PromptCacheSpec& cache,
                                  const SessionState& given, int64_t appended, int64_t cached,
                                  int64_t most) {
  // Else nobody can tell which of its tokens are meant.
  const bool certain = asked.client == nullptr || asked.client->maybe.size() == 1;
  if (certain && (cached < 0 || cached > (cache.enabled ? most : 0))) {
    journal_->Broken("I9: ", asked.what, " says that ", cached, " of its ", appended,
                     " tokens were not fed; at most ", cache.enabled ? most : 0, " can be");
  }
  if (!cache.enabled) return;
  const std::string scope = SharedPrompts::Scope(asked.tenant, cache.salt);
  shared_.Offer(asked.number, asked.turn, scope, given.tokens);
  if (cached <= 0 || !certain) return;
  journal_->Count("cache hit");
  const auto end = given.tokens.begin() + (given.size() - appended + cached);
  shared_.Hit(asked.number, clock_.turn(), scope, {given.tokens.begin(), end});
}

void ResultJudge::JudgeUsage(const Asked& asked, const GenerateSpec& spec, const SeenReply& seen,
                             const Usage& usage) {
  int64_t tokens = 0;
  for (const SeenSample& sample : seen.samples)
    tokens += static_cast<int64_t>(sample.tokens.size());
  int64_t resumed = 0;  // it had them before
  if (spec.resume) {
    for (const auto& sample : spec.resume->tokens) resumed += std::ssize(sample);
  }
  tokens_seen_ += tokens - resumed;
  journal_->Count("draft accepted", usage.accepted_tokens);
  journal_->Count("draft rejected", usage.drafted_tokens - usage.accepted_tokens);
  const bool drafts = spec.speculation.drafts != 0;
  if (usage.accepted_tokens > usage.drafted_tokens || (!drafts && usage.drafted_tokens > 0)) {
    journal_->Broken("I9: ", usage.drafted_tokens, " drafts of ", asked.what);
  }
  if (usage.completion_tokens != tokens ||
      usage.prompt_tokens != static_cast<int64_t>(spec.prompt.size())) {
    journal_->Broken("I9: the usage of ", asked.what, " is not what was seen");
  }
  const bool reads_state = spec.cache.enabled && world_.disk.has_value();
  const bool waits_at_once = !spec.session && !reads_state && !spec.constraint;
  if (waits_at_once) JudgeWait(asked, asked.arrival + usage.queue_time);
  if (tokens == resumed) return;  // it may have ended without slots
  turns_.Note({.number = asked.number,
               .tenant = asked.tenant,
               .priority = asked.priority,
               .slots = spec.num_samples,
               .waits_at_once = waits_at_once,
               .first = asked.first,
               .holds = world_.state_memory().reader_bytes == 0,
               .arrival = asked.arrival,
               .admitted = asked.arrival + usage.queue_time,
               .ended = asked.arrival + usage.total_time});
}

void ResultJudge::JudgeWait(const Asked& asked, absl::Time admitted) {
  if (!asked.first || clock_.went_back() || !world_.room_for_all()) return;
  const int64_t runs = clock_.RunsBefore(admitted) - asked.runs_before;
  const int64_t most = int64_t{world_.options.preempt_after_runs} * asked.tenants;
  if (runs > 0) journal_->Count("a tenant's first request waited");
  if (runs > most) {
    journal_->Broken("fair shares: ", asked.what, ", the first of its tenant, waited for ", runs,
                     " runs; promised: at most ", most);
  }
}

void ResultJudge::Generate(Asked* asked, const GenerateSpec& spec, const SeenReply& seen,
                           const Usage& usage) {
  const bool reached = status_->End(asked, seen.status) || EndedFromOutside(seen.status);
  JudgeUsage(*asked, spec, seen, usage);
  journal_->Note(asked->what, " brought ", seen.samples[0].tokens);
  if (!spec.session) {
    SessionState prompt;
    for (const int32_t token : spec.prompt) prompt.Append(token, false);
    JudgeReplicated(*asked, spec.cache, prompt, prompt.size(), usage.cached_prompt_tokens,
                    std::max<int64_t>(0, prompt.size() - 1));
    const std::string wrong = truth_.Judge(spec, seen);
    if (!wrong.empty()) journal_->Broken("I1: ", asked->what, ": ", wrong);
  } else if (reached) {
    clients_->Narrow(*asked, [&](const SessionState& state) {
      std::vector<SessionState> after = truth_.After(state, asked->client->seed, spec, seen);
      SessionState begun = state;
      int64_t appended = 0;
      if (!after.empty() && truth_.Extend(*spec.session, spec.prompt, &begun, &appended).empty()) {
        JudgeReplicated(*asked, spec.cache, begun, appended, usage.cached_prompt_tokens,
                        std::max<int64_t>(0, appended - 1));
      }
      return after;
    });
  } else if (seen.samples[0].tokens.size() > (spec.resume ? spec.resume->tokens[0].size() : 0)) {
    journal_->Broken("I4: ", asked->what, " brought tokens of a session that it did not reach");
  }
  requests_->Remove(asked);
}

void ResultJudge::Score(Asked* asked, const ScoreSpec& spec,
                        const absl::StatusOr<ScoreResult>& seen) {
  if (status_->End(asked, seen.status())) {
    const std::optional<ScoreResult> want = truth_.Score(spec);
    const bool right = seen.ok() ? want && SameScore(*want, *seen)
                                 : !want && ReasonOf(seen.status()) == "NON_FINITE_OUTPUT";
    if (!right) journal_->Broken("I1: ", asked->what, " is wrong: ", seen.status());
  }
  requests_->Remove(asked);
}

void ResultJudge::Append(Asked* asked, const AppendSpec& spec,
                         const absl::StatusOr<ScoreResult>& seen) {
  if (status_->End(asked, seen.status()) || EndedFromOutside(seen.status())) {
    clients_->Narrow(*asked, [&](const SessionState& state) {
      std::vector<SessionState> after = truth_.After(state, asked->client->seed, spec, seen);
      SessionState begun = state;
      int64_t appended = 0;
      if (!after.empty() && truth_.Extend(spec.session, spec.tokens, &begun, &appended).empty()) {
        JudgeReplicated(*asked, spec.cache, begun, appended, seen.ok() ? seen->cached_tokens : 0,
                        spec.score ? 0 : appended);
      }
      return after;
    });
    if (seen.ok()) asked->client->appended = spec.tokens;
  }
  requests_->Remove(asked);
}

void ResultJudge::AllEnded() {
  const std::string unexplained = shared_.Unexplained();
  if (!unexplained.empty()) journal_->Broken(unexplained);
  if (clock_.went_back()) return;
  const bool preempted = journal_->Counted("preempted") > 0;
  const std::string unfair = turns_.Unfair(preempted, world_.room_for_all());
  if (!unfair.empty()) journal_->Broken("fair shares: ", unfair);
}

}  // namespace rivulet::simulated
