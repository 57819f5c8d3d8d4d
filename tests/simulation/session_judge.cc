// SPDX-License-Identifier: Apache-2.0
// What is made of the ends of calls on sessions: fork, rewind, list, snapshot.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sessions/snapshot.h"
#include "tests/simulation/simulation.h"

namespace rivulet {
namespace {

bool IsStateOf(const FakeHistory& history, std::span<const float> state) {
  const std::vector<float> want = FakeState(history, state.size_bytes());
  return std::equal(state.begin(), state.end(), want.begin(), want.end());
}

}  // namespace

void Simulation::EndFork(Asked* asked, const ForkSpec& spec,
                         const absl::StatusOr<std::vector<SessionInfo>>& seen) {
  const std::string reason = ReasonOf(seen.status());
  const bool full = reason == "SESSION_LIMIT" || reason == "TENANT_SESSION_LIMIT";
  if (End(asked, seen.status()) && !full) {
    std::vector<SessionState> forked;
    Narrow(*asked, [&](const SessionState& state) -> std::vector<SessionState> {
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
    if (seen.ok() && broken_.empty()) {
      Count("fork");
      for (const SessionInfo& info : *seen) NewClient(info, asked->client->tenant, forked);
    }
  }
  Remove(asked);
}

void Simulation::EndRewind(Asked* asked, const SessionRef& to,
                           const absl::StatusOr<SessionInfo>& seen) {
  const std::string reason = ReasonOf(seen.status());
  if (End(asked, seen.status())) {
    Narrow(*asked, [&](SessionState state) -> std::vector<SessionState> {
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
    if (seen.ok()) Count("rewind");
  }
  Remove(asked);
}

void Simulation::EndList(const Asked& asked, const std::string& tenant,
                         const std::vector<SessionInfo>& seen) {
  Count("list");
  size_t known = 0;
  for (const Client& client : clients_) {
    const auto info = std::find_if(seen.begin(), seen.end(),
                                   [&](const SessionInfo& other) { return other.id == client.id; });
    if (info == seen.end()) {
      const bool sure =
          client.tenant == tenant && !client.gone && !client.closing && !MayHaveExpired(client);
      if (sure) Broken(absl::StrCat("I9: session ", client.number, " is not listed"));
      continue;
    }
    ++known;
    if (client.tenant != tenant) Broken("I4: another tenant's session is listed");
    if (client.gone && client.gone_turn <= asked.turn + 1)
      Broken("I9: a session that is gone is listed");
    const bool fits =
        std::any_of(client.maybe.begin(), client.maybe.end(),
                    [&](const SessionState& state) { return Fits(*info, client, state); });
    if (!info->busy && !fits)
      Broken(absl::StrCat("I4: session ", client.number, " is not as its client left it"));
  }
  if (known != seen.size()) Broken("I9: a session is listed that nobody opened");
}

void Simulation::EndSnapshot(Asked* asked, const SessionRef& ref,
                             const absl::StatusOr<SessionImage>& seen) {
  const std::string reason = ReasonOf(seen.status());
  if (End(asked, seen.status())) {
    Narrow(*asked, [&](const SessionState& whole) -> std::vector<SessionState> {
      const int64_t position = ref.position.value_or(whole.size());
      const bool within = position >= 0 && position <= whole.size();
      if (!within || !seen.ok()) {
        return !within && reason == "POSITION_OUT_OF_RANGE" ? std::vector{whole}
                                                            : std::vector<SessionState>();
      }
      SessionState state = whole;
      state.Cut(position);
      const std::span<const int32_t> tokens = seen->sequence.tokens();
      const bool same =
          std::equal(tokens.begin(), tokens.end(), state.tokens.begin(), state.tokens.end()) &&
          seen->marks == state.marks && seen->tenant == asked->client->tenant &&
          seen->seed == asked->client->seed;
      if (!same) return {};
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (seen->sequence.generated(static_cast<int64_t>(i)) != state.generated[i]) return {};
      }
      const Checkpoint& kept = seen->state;
      if (kept.fed < 0 || kept.fed > std::max<int64_t>(0, truth_.bos() + state.size() - 1))
        return {};
      if ((kept.fed == 0) != (kept.state == nullptr)) return {};
      if (kept.state != nullptr && !IsStateOf(truth_.Fed(state, kept.fed), kept.state->values()))
        return {};
      return {whole};
    });
    if (seen.ok() && broken_.empty()) KeepSnapshot(*asked, *seen);
  }
  Remove(asked);
}

void Simulation::KeepSnapshot(const Asked& asked, const SessionImage& image) {
  Count("snapshot");
  Snapshot snapshot;
  snapshot.model_name = "fake";
  snapshot.weights_sha256 = snapshot.config_sha256 = std::string(64, '0');
  snapshot.numerics_id = "fake";
  snapshot.layout = world_.config.state_layout();
  snapshot.tenant = image.tenant;
  snapshot.seed = image.seed;
  snapshot.sequence_hash = image.sequence.hash();
  snapshot.tokens.assign(image.sequence.tokens().begin(), image.sequence.tokens().end());
  for (int64_t i = 0; i < image.sequence.size(); ++i)
    snapshot.generated.push_back(image.sequence.generated(i));
  snapshot.marks = image.marks;
  snapshot.fed = image.state.fed;
  if (image.state.state != nullptr) {
    snapshot.state.assign(image.state.state->values().begin(), image.state.state->values().end());
  }
  if (snapshots_.size() >= 4) snapshots_.erase(snapshots_.begin());
  SessionState state = asked.client->maybe[0];
  state.Cut(image.sequence.size());
  snapshots_.push_back({EncodeSnapshot(snapshot, ""), image.tenant, image.seed, std::move(state)});
}

}  // namespace rivulet
