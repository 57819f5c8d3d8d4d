// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/shared_states.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/engine/loop/shared_sessions.h"

namespace rivulet {
namespace {

constexpr double kLasting = 0.95;  // of a weighted sum, at each addition

void Add(double value, double* sum) { *sum = *sum * kLasting + value; }

// The last state of a session that was published or given to the archive, after so many fed tokens.
int64_t LastPublished(const Session& session) {
  const SharedCopy* const copy = session.shared.get();
  if (copy == nullptr) return 0;
  return std::max(copy->publishing, copy->published.empty() ? 0 : copy->published.back());
}

// How many tokens of its history the state after `fed` tokens has seen.
int64_t Seen(const Session& session, int64_t fed) {
  return std::max<int64_t>(0, fed - (session.total() - session.position()));
}

bool IsFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

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

bool SharedStates::IsWorth(const Session& session) const {
  return IsWorth(session, session.From(session.total()));
}

bool SharedStates::IsWorth(const Session& session, const KeptCheckpoint& latest) const {
  if (archive_ == nullptr || session.shared == nullptr) return false;
  if (latest.state == nullptr || !latest.state->in_memory()) return false;
  const int64_t saved = latest.fed - LastPublished(session);
  if (options_.after_tokens) return saved >= *options_.after_tokens;
  if (saved <= 0 || fed_ <= 0) return false;
  const double recomputing = static_cast<double>(saved) * fed_seconds_ / fed_;
  const double writing = static_cast<double>(state_bytes_) * written_seconds_ / written_bytes_;
  return recomputing > 2 * writing;  // it is read, too
}

bool SharedStates::has_room() const {
  return under_way_ == 0 || (under_way_ + 1) * state_bytes_ <= options_.max_pending_bytes;
}

void SharedStates::Publish(Session* session) {
  const KeptCheckpoint latest = session->From(session->total());
  if (!IsWorth(*session, latest)) return;
  if (!has_room()) {
    ++totals_->states_skipped;
    return;
  }
  ++under_way_;
  session->shared->publishing = latest.fed;
  const int64_t seen = Seen(*session, latest.fed);
  const StateStamp stamp = SharedStateStamp(
      model_, session->tenant, session->history.tokens().first(static_cast<size_t>(seen)));
  const auto number = static_cast<uint64_t>(latest.fed);
  const BlobPtr blob = store_->Use(latest.state.get());
  const Published state{session->id, latest.fed, session->history.HashAt(seen)};
  archive_->Put(
      SharedStateName(stamp, number, blob->values().size()),
      [stamp, number, blob] { return EncodeStateFile(stamp, number, blob->values()); },
      // As long as the session's record; beyond the lease nothing happens to an idle session.
      session->idle_timeout,
      Posting<absl::Status>(mailbox_, [this, state, begun = clock_()](const absl::Status& status) {
        OnPut(state, begun, status);
      }));
}

void SharedStates::OnPut(const Published& state, absl::Time begun, const absl::Status& status) {
  --under_way_;
  if (!status.ok()) {
    ++totals_->states_failed;
    return;
  }
  ++totals_->states_published;
  totals_->states_published_bytes += state_bytes_;
  Add(static_cast<double>(state_bytes_), &written_bytes_);
  Add(absl::ToDoubleSeconds(clock_() - begun), &written_seconds_);
  published_.push_back(state);
}

void SharedStates::Adopt(Session* session, const std::vector<int64_t>& fed) {
  if (archive_ == nullptr || fed.empty()) return;
  const auto history = session->history.tokens();
  const auto tokens = std::make_shared<const std::vector<int32_t>>(history.begin(), history.end());
  for (const int64_t count : fed) {
    if (count > session->total() || session->Keeps(count)) continue;
    PublishedRead read = ReadOf(session->tenant, tokens, Seen(*session, count), count);
    session->Keep({count, store_->KeepPublished(state_bytes_, std::move(read))});
  }
}

PublishedRead SharedStates::ReadOf(const std::string& tenant,
                                   std::shared_ptr<const std::vector<int32_t>> tokens, int64_t seen,
                                   int64_t fed) {
  using Values = absl::StatusOr<std::vector<float>>;
  return [this, tenant, tokens = std::move(tokens), seen, fed,
          count = static_cast<size_t>(state_bytes_) /
                  sizeof(float)](const std::function<void(Values)>& done) {
    const StateStamp stamp = SharedStateStamp(
        model_, tenant, std::span<const int32_t>(*tokens).first(static_cast<size_t>(seen)));
    const auto number = static_cast<uint64_t>(fed);
    archive_->Get(SharedStateName(stamp, number, count),
                  [stamp, number, count, done, mailbox = mailbox_,
                   totals = totals_](const absl::StatusOr<std::string>& bytes) {
                    Values values = absl::NotFoundError("it is not there");
                    if (!bytes.ok()) values = bytes.status();
                    if (bytes.ok() && !bytes->empty()) {
                      values = DecodeStateFile(*bytes, stamp, number, count);
                    }
                    if (values.ok() && !IsFinite(*values)) {
                      values = absl::DataLossError("a value of the state is not finite");
                    }
                    const absl::Status status = values.status();
                    mailbox->Post([totals, status] { totals->CountStateRead(status); });
                    done(std::move(values));
                  });
  };
}

}  // namespace rivulet
