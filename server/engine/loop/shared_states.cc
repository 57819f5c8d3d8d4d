// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/shared_states.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/engine/loop/shared_sessions.h"

namespace rivulet {
namespace {

constexpr double kLasting = 0.95;  // of a weighted sum, at each addition

void Add(double value, double* sum) { *sum = *sum * kLasting + value; }

}  // namespace

SharedStates::SharedStates(std::shared_ptr<StateArchive> archive, const PublishOptions& options,
                           StateStamp model, StateStore* store, int64_t state_bytes, Clock clock,
                           std::shared_ptr<LoopMailbox> mailbox, SharedTotals* totals)
    : archive_(std::move(archive)),
      options_(options),
      model_(std::move(model)),
      store_(store),
      state_bytes_(state_bytes),
      clock_(std::move(clock)),
      mailbox_(std::move(mailbox)),
      totals_(totals) {}

void SharedStates::NoteRun(int64_t fed, absl::Duration time) {
  Add(static_cast<double>(fed), &fed_);
  Add(absl::ToDoubleSeconds(time), &fed_seconds_);
}

KeptCheckpoint SharedStates::WorthPublishing(const Session& session) const {
  const SharedCopy* const copy = session.shared.get();
  if (archive_ == nullptr || session.closed || copy == nullptr || !copy->known) return {};
  KeptCheckpoint latest = session.From(session.total());
  if (latest.state == nullptr || !latest.state->in_memory()) return {};
  const int64_t last = copy->published.empty() ? 0 : copy->published.back();
  const int64_t saved = latest.fed - std::max(copy->publishing, last);
  if (options_.after_tokens) return saved >= *options_.after_tokens ? latest : KeptCheckpoint();
  if (saved <= 0 || fed_ <= 0) return {};
  const double recomputing = static_cast<double>(saved) * fed_seconds_ / fed_;
  const double writing = static_cast<double>(state_bytes_) * written_seconds_ / written_bytes_;
  return recomputing > 2 * writing ? latest : KeptCheckpoint();  // it is read, too
}

bool SharedStates::has_room() const {
  return under_way_ == 0 || (under_way_ + 1) * state_bytes_ <= options_.max_pending_bytes;
}

void SharedStates::Publish(Session* session) {
  const KeptCheckpoint latest = WorthPublishing(*session);
  if (latest.state == nullptr) return;
  if (!has_room()) {
    ++totals_->states_skipped;
    return;
  }
  ++under_way_;
  session->shared->publishing = latest.fed;
  const int64_t seen = session->Seen(latest.fed);
  const auto tokens = session->history.tokens().first(static_cast<size_t>(seen));
  const Published state{session->id, latest.fed, session->history.HashAt(seen)};
  archive_->Put(
      // With long sessions it takes milliseconds, so not here.
      [model = model_, tenant = session->tenant,
       tokens = std::vector<int32_t>(tokens.begin(), tokens.end()),
       number = static_cast<uint64_t>(latest.fed), blob = store_->Use(latest.state.get())] {
        const StateStamp stamp = SharedStateStamp(model, tenant, tokens);
        return ArchivedState{SharedStateName(stamp, number, blob->values().size()),
                             EncodeStateFile(stamp, number, blob->values())};
      },
      // As long as the session's record; beyond the lease nothing happens to an idle session.
      session->idle_timeout,
      Posting<absl::Status>(mailbox_, [this, state, begun = clock_()](const absl::Status& status) {
        OnPut(state, begun, status);
      }));
}

void SharedStates::OnPut(const Published& state, absl::Time begun, const absl::Status& status) {
  --under_way_;
  failing_ = !status.ok();
  published_.push_back(state);
  if (failing_) {
    ++totals_->states_failed;
    published_.back().fed = 0;
    return;
  }
  ++totals_->states_published;
  totals_->states_published_bytes += state_bytes_;
  Add(static_cast<double>(state_bytes_), &written_bytes_);
  Add(absl::ToDoubleSeconds(clock_() - begun), &written_seconds_);
}

void SharedStates::Adopt(Session* session, const std::vector<int64_t>& fed) {
  if (archive_ == nullptr) return;
  for (const int64_t count : fed) {
    if (count > session->total() || session->Keeps(count)) continue;
    const auto seen = static_cast<size_t>(session->Seen(count));
    const StateStamp stamp =
        SharedStateStamp(model_, session->tenant, session->history.tokens().first(seen));
    const size_t values = static_cast<size_t>(state_bytes_) / sizeof(float);
    std::string name = SharedStateName(stamp, static_cast<uint64_t>(count), values);
    session->Keep({count, store_->KeepPublished(state_bytes_, ReadOf(std::move(name), values))});
  }
}

PublishedRead SharedStates::ReadOf(std::string name, size_t num_values) {
  using Values = absl::StatusOr<std::vector<float>>;
  return [archive = archive_, mailbox = mailbox_, totals = totals_, name = std::move(name),
          num_values](const std::function<void(Values)>& done) {
    archive->Get(name, [archive, mailbox, totals, name, num_values,
                        done](const absl::StatusOr<std::string>& bytes) {
      Values values = absl::NotFoundError("it is not there");
      if (!bytes.ok()) values = bytes.status();
      if (bytes.ok() && !bytes->empty()) values = DecodeSharedState(*bytes, name, num_values);
      const absl::Status status = values.status();
      if (absl::IsDataLoss(status)) archive->Drop(name);
      mailbox->Post([totals, status] { totals->CountStateRead(status); });
      done(std::move(values));
    });
  };
}

}  // namespace rivulet
