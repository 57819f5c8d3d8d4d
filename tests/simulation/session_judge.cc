// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/session_judge.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/sessions/snapshot.h"

namespace rivulet::simulated {
namespace {}  // namespace

void SessionJudge::Open(Asked* asked, const OpenSpec& spec,
                        const absl::StatusOr<SessionInfo>& seen) {
  if (status_->End(asked, seen.status()) && seen.ok()) {
    journal_->Count("open");
    const absl::Duration idle = spec.idle_timeout.value_or(world_.options.sessions.default_idle);
    if (seen->seed != *spec.seed || seen->position != 0 || seen->idle_timeout != idle)
      journal_->Broken("a new session is not as asked for");
    clients_->Open(*seen, spec.tenant, {SessionState()});
  }
  requests_->Remove(asked);
}

void SessionJudge::Close(Asked* asked, const absl::Status& status) {
  if (status_->End(asked, status) && status.ok()) {
    journal_->Count("close");
    Clients::Gone(asked->client, asked->turn + 1);
    for (const Asked& other : *requests_) {
      if (other.client == asked->client && !other.foreign && other.number < asked->number) {
        journal_->Broken("I8: ", other.what, " goes on after ", asked->what);
      }
    }
  }
  requests_->Remove(asked);
}

void SessionJudge::Fork(Asked* asked, const ForkSpec& spec,
                        const absl::StatusOr<std::vector<SessionInfo>>& seen) {
  const std::string reason = ReasonOf(seen.status());
  const bool full = reason == "SESSION_LIMIT" || reason == "TENANT_SESSION_LIMIT";
  if (status_->End(asked, seen.status()) && !full) {
    std::vector<SessionState> forked;
    clients_->Narrow(*asked, [&](const SessionState& state) -> std::vector<SessionState> {
      const int64_t position = spec.session.position.value_or(state.size());
      const bool within = position >= 0 && position <= state.size();
      if (!seen.ok())
        return !within && reason == "POSITION_OUT_OF_RANGE" ? std::vector{state}
                                                            : std::vector<SessionState>();
      if (!within || seen->size() != static_cast<size_t>(spec.count)) return {};
      SessionState fork = state;
      fork.Cut(position);
      for (size_t i = 0; i < seen->size(); ++i) {
        Client expected;
        expected.id = (*seen)[i].id;
        expected.seed = *spec.seed + i;
        expected.idle = asked->client->idle;
        if (!Fits((*seen)[i], expected, fork)) return {};
      }
      forked.push_back(fork);
      return {state};
    });
    if (seen.ok() && journal_->ok()) {
      journal_->Count("fork");
      for (const SessionInfo& info : *seen) clients_->Open(info, asked->client->tenant, forked);
    }
  }
  requests_->Remove(asked);
}

void SessionJudge::Rewind(Asked* asked, const SessionRef& to,
                          const absl::StatusOr<SessionInfo>& seen) {
  const std::string reason = ReasonOf(seen.status());
  if (status_->End(asked, seen.status())) {
    clients_->Narrow(*asked, [&](SessionState state) -> std::vector<SessionState> {
      const auto mark = state.marks.find(to.mark);
      const bool known = to.mark.empty() || mark != state.marks.end();
      if (!known)
        return reason == "MARK_NOT_FOUND" ? std::vector{state} : std::vector<SessionState>();
      const int64_t position = to.mark.empty() ? *to.position : mark->second;
      if (position < 0 || position > state.size()) {
        return reason == "POSITION_OUT_OF_RANGE" ? std::vector{state} : std::vector<SessionState>();
      }
      if (!seen.ok()) return {};
      state.Cut(position);
      return Fits(*seen, *asked->client, state) ? std::vector{state} : std::vector<SessionState>();
    });
    if (seen.ok()) journal_->Count("rewind");
  }
  requests_->Remove(asked);
}

void SessionJudge::List(Asked* asked, bool beyond, const absl::StatusOr<SessionPage>& seen) {
  if (status_->End(asked, seen.status()) && seen.ok()) {
    if (!beyond) {
      JudgeList(*asked, seen->sessions);
    } else if (!seen->sessions.empty()) {
      journal_->Broken("I9: a page too far");
    }
  }
  requests_->Remove(asked);
}

void SessionJudge::JudgeList(const Asked& asked, const std::vector<SessionInfo>& seen) {
  journal_->Count("list");
  size_t known = 0;
  for (const Client& client : *clients_) {
    const auto info = std::find_if(seen.begin(), seen.end(),
                                   [&](const SessionInfo& other) { return other.id == client.id; });
    if (info == seen.end()) {
      const bool sure = client.tenant == asked.tenant && !client.gone && !client.closing &&
                        !clients_->MayHaveExpired(client);
      if (sure) journal_->Broken("I9: session ", client.number, " is not listed");
      continue;
    }
    ++known;
    if (client.tenant != asked.tenant) journal_->Broken("I4: another tenant's session is listed");
    if (client.gone && client.gone_turn <= asked.turn + 1)
      journal_->Broken("I9: a session that is gone is listed");
    const bool fits =
        std::any_of(client.maybe.begin(), client.maybe.end(),
                    [&](const SessionState& state) { return Fits(*info, client, state); });
    if (!info->busy && !fits)
      journal_->Broken("I4: session ", client.number, " is not as its client left it");
  }
  if (known != seen.size()) journal_->Broken("I9: a session is listed that nobody opened");
}

void SessionJudge::TakeSnapshot(Asked* asked, const SessionRef& ref,
                                const absl::StatusOr<SessionImage>& seen) {
  const std::string reason = ReasonOf(seen.status());
  if (status_->End(asked, seen.status())) {
    clients_->Narrow(*asked, [&](const SessionState& whole) -> std::vector<SessionState> {
      const int64_t position = ref.position.value_or(whole.size());
      const bool within = position >= 0 && position <= whole.size();
      if (!within || !seen.ok()) {
        return !within && reason == "POSITION_OUT_OF_RANGE" ? std::vector{whole}
                                                            : std::vector<SessionState>();
      }
      SessionState state = whole;
      state.Cut(position);
      const std::span<const int32_t> tokens = seen->history.tokens();
      const bool same =
          std::equal(tokens.begin(), tokens.end(), state.tokens.begin(), state.tokens.end()) &&
          seen->marks == state.marks && seen->tenant == asked->client->tenant &&
          seen->seed == asked->client->seed;
      if (!same) return {};
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (seen->history.generated(static_cast<int64_t>(i)) != state.generated[i]) return {};
      }
      const Checkpoint& kept = seen->state;
      if (kept.fed < 0 || kept.fed > std::max<int64_t>(0, world_.bos() + state.size() - 1))
        return {};
      if ((kept.fed == 0) != (kept.state == nullptr)) return {};
      if (kept.state != nullptr &&
          kept.state->values() != FakeState(truth_.Fed(state, kept.fed), world_.state_size()))
        return {};
      return {whole};
    });
    if (seen.ok() && journal_->ok()) Keep(*asked->client, *seen);
  }
  requests_->Remove(asked);
}

void SessionJudge::Restore(Asked* asked, const std::string& tenant, uint64_t seed,
                           const absl::StatusOr<SessionInfo>& seen) {
  if (status_->End(asked, seen.status()) && seen.ok()) {
    journal_->Count("restore");
    const Client& client = *clients_->Open(*seen, tenant, {*asked->restores});
    if (client.seed != seed || !Fits(*seen, client, *asked->restores))
      journal_->Broken("a restored session is not the one that was kept");
  }
  requests_->Remove(asked);
}

void SessionJudge::Keep(const Client& client, const SessionImage& image) {
  journal_->Count("snapshot");
  Snapshot snapshot;
  snapshot.model_name = "fake";
  snapshot.weights_sha256 = snapshot.config_sha256 = std::string(64, '0');
  snapshot.numerics_id = "fake";
  snapshot.layout = world_.config.state_layout();
  snapshot.grows = world_.grows();
  if (snapshot.grows) snapshot.layout_sha256 = std::string(64, '0');
  snapshot.tenant = image.tenant;
  snapshot.seed = image.seed;
  snapshot.sequence_hash = image.history.hash();
  snapshot.tokens.assign(image.history.tokens().begin(), image.history.tokens().end());
  for (int64_t i = 0; i < image.history.size(); ++i)
    snapshot.generated.push_back(image.history.generated(i));
  snapshot.marks = image.marks;
  snapshot.fed = image.state.fed;
  if (image.state.state != nullptr) {
    snapshot.state = image.state.state->values();
  }
  if (snapshots_.size() >= 4) snapshots_.erase(snapshots_.begin());
  SessionState state = client.maybe[0];
  state.Cut(image.history.size());
  snapshots_.push_back({EncodeSnapshot(snapshot, ""), image.tenant, image.seed, std::move(state)});
}

}  // namespace rivulet::simulated
