// SPDX-License-Identifier: Apache-2.0
#include "server/engine/replicas/replicated_states.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/engine/replicas/replicated_sessions.h"

namespace rivulet {
namespace {

constexpr double kLasting = 0.95;  // factor of a weighted sum at each addition

void Add(double value, double* sum) { *sum = *sum * kLasting + value; }

// Fed tokens of the last published state; 0: none was published.
int64_t LastPublished(const Session& session) {
  const std::vector<int64_t>& published = session.replicated->published;
  return published.empty() ? 0 : published.back();
}

// Collects the parts of a state, which arrive one by one on threads of the archive.
class Gathered {
 public:
  using Done = std::function<void(absl::StatusOr<CutState>)>;
  Gathered(size_t parts, Done done) : done_(std::move(done)), parts_(parts), left_(parts) {}

  void Put(size_t part, absl::StatusOr<std::vector<float>> values) {
    MutexLock lock(&mutex_);
    if (values.ok()) {
      parts_[part] = *std::move(values);
    } else {
      status_.Update(values.status());
    }
    if (--left_ > 0) return;
    if (!status_.ok()) return done_(status_);
    CutState state;
    state.own = std::move(parts_.back());
    parts_.pop_back();
    state.segments = std::move(parts_);
    done_(std::move(state));
  }

 private:
  const Done done_;
  Mutex mutex_;
  std::vector<std::vector<float>> parts_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

struct ReplicatedStates::Publication {
  Published state;
  int64_t new_bytes;     // NewBytes
  absl::Duration begun;  // by the steady clock
  size_t left;           // parts that are not there yet
  int64_t written = 0;
  absl::Status status = {};
};

struct ReplicatedStates::Place {
  StateStamp model;
  std::string tenant;
  std::vector<int32_t> tokens;
  int64_t bos;
  std::vector<Part> parts;
  mutable absl::once_flag named = {};
  mutable std::vector<std::string> names = {};  // of the parts, once needed

  StateStamp Stamp(size_t part) const {
    const auto seen = [&](size_t i) { return std::max<int64_t>(0, parts[i].fed - bos); };
    const int64_t before = part == 0 ? 0 : seen(part - 1);
    return ArchivedStateStamp(model, tenant, part == 0 ? "" : names[part - 1],
                              std::span(tokens).subspan(static_cast<size_t>(before),
                                                        static_cast<size_t>(seen(part) - before)));
  }
  uint64_t Number(size_t part) const {
    const int64_t fed = parts[part].fed;
    return parts[part].segment ? ArchivedSegmentNumber(fed) : ArchivedStateNumber(fed);
  }
  const std::string& Name(size_t part) const {
    absl::call_once(named, [this] {
      for (size_t i = 0; i < parts.size(); ++i) {
        names.push_back(ArchivedStateName(Stamp(i), Number(i), parts[i].values));
      }
    });
    return names[part];
  }
};

ReplicatedStates::ReplicatedStates(std::shared_ptr<StateArchive> archive,
                                   const PublishOptions& options, StateStamp model,
                                   StateStore* store, Clock clock,
                                   std::shared_ptr<LoopMailbox> mailbox, ReplicaTotals* totals)
    : archive_(std::move(archive)),
      options_(options),
      model_(std::move(model)),
      store_(store),
      clock_(std::move(clock)),
      mailbox_(std::move(mailbox)),
      totals_(totals) {}

void ReplicatedStates::NoteRun(int64_t fed, absl::Duration time) {
  Add(static_cast<double>(fed), &fed_);
  Add(absl::ToDoubleSeconds(time), &fed_seconds_);
}

KeptCheckpoint ReplicatedStates::WorthPublishing(const Session& session) const {
  const ReplicatedCopy* const copy = session.replicated.get();
  if (archive_ == nullptr || session.closed || copy == nullptr || !copy->life.known()) return {};
  KeptCheckpoint latest = session.From(session.total());
  if (latest.state == nullptr || !latest.state->in_memory()) return {};
  const int64_t last = LastPublished(session);
  const int64_t saved = latest.fed - std::max(copy->publishing, last);
  if (options_.after_tokens) return saved >= *options_.after_tokens ? latest : KeptCheckpoint();
  if (saved <= 0 || fed_ <= 0) return {};
  const double recomputing = static_cast<double>(saved) * fed_seconds_ / fed_;
  const double writing =
      static_cast<double>(NewBytes(session, latest.fed)) * written_seconds_ / written_bytes_;
  return recomputing > 2 * writing ? latest : KeptCheckpoint();  // states are read, too
}

int64_t ReplicatedStates::NewBytes(const Session& session, int64_t fed) const {
  const StateSize& size = store_->size();
  const int64_t segments = size.Segments(fed) - size.Segments(LastPublished(session));
  return store_->OwnBytes(fed) + segments * static_cast<int64_t>(size.segment_bytes());
}

bool ReplicatedStates::has_room(const Session& session, int64_t fed) const {
  return under_way_ == 0 || under_way_bytes_ + NewBytes(session, fed) <= options_.max_pending_bytes;
}

void ReplicatedStates::Publish(Session* session) {
  const KeptCheckpoint latest = WorthPublishing(*session);
  if (latest.state == nullptr) return;
  if (!has_room(*session, latest.fed)) {
    ++totals_->states_skipped;
    return;
  }
  const int64_t new_bytes = NewBytes(*session, latest.fed);
  ++under_way_;
  under_way_bytes_ += new_bytes;
  session->replicated->publishing = latest.fed;
  const int64_t seen = session->Seen(latest.fed);
  const auto place = PlaceOf(*session, latest.fed);
  const size_t parts = place->parts.size();
  const auto publication = std::make_shared<Publication>(Publication{
      {session->id, latest.fed, session->history.HashAt(seen)}, new_bytes, clock_.Steady(), parts});
  const ViewPtr view = store_->Use(latest.state.get());
  // The first segment is written last and expires last: to make room, the archive drops the last
  // parts first, so that the remaining parts still belong to states.
  for (size_t i = parts; i-- > 0;) {
    archive_->Put(
        // For long sessions the names take milliseconds, so they are not computed here.
        [place, view, i] {
          const std::string& name = place->Name(i);
          const StateStamp stamp = place->Stamp(i);
          return ArchivedState{name,
                               static_cast<int64_t>(StateFileBytes(stamp, place->parts[i].values)),
                               [place, stamp, view, i] {
                                 return EncodeStateFile(stamp, place->Number(i), view->part(i));
                               }};
        },
        // The same as the session's record; beyond the lease nothing happens to an idle session.
        session->idle_timeout + absl::Milliseconds(parts - 1 - i),
        Posting<absl::StatusOr<int64_t>>(
            mailbox_, [this, publication](const absl::StatusOr<int64_t>& written) {
              OnPut(publication.get(), written);
            }));
  }
}

void ReplicatedStates::OnPut(Publication* publication, const absl::StatusOr<int64_t>& written) {
  publication->status.Update(written.status());
  publication->written += written.value_or(0);
  if (--publication->left > 0) return;
  --under_way_;
  under_way_bytes_ -= publication->new_bytes;
  failing_ = !publication->status.ok();
  published_.push_back(publication->state);
  if (failing_) {
    ++totals_->states_failed;
    published_.back().fed = publication->status;
    return;
  }
  ++totals_->states_published;
  totals_->states_published_bytes += publication->written;
  if (publication->written == 0) return;
  Add(static_cast<double>(publication->written), &written_bytes_);
  Add(absl::ToDoubleSeconds(clock_.Steady() - publication->begun), &written_seconds_);
}

std::vector<ReplicatedStates::Part> ReplicatedStates::PartsOf(int64_t fed) const {
  const StateSize& size = store_->size();
  std::vector<Part> parts;
  for (int64_t i = 1; i <= size.Segments(fed); ++i) {
    parts.push_back({i * size.segment_tokens, true, size.segment_bytes() / sizeof(float)});
  }
  parts.push_back({fed, false, static_cast<size_t>(store_->OwnBytes(fed)) / sizeof(float)});
  return parts;
}

std::shared_ptr<const ReplicatedStates::Place> ReplicatedStates::PlaceOf(const Session& session,
                                                                         int64_t fed) const {
  const int64_t seen = session.Seen(fed);
  const auto tokens = session.history.tokens().first(static_cast<size_t>(seen));
  return std::shared_ptr<const Place>(
      new Place{model_, session.tenant, {tokens.begin(), tokens.end()}, fed - seen, PartsOf(fed)});
}

void ReplicatedStates::Adopt(Session* session, const std::vector<int64_t>& fed) {
  if (archive_ == nullptr) return;
  for (const int64_t count : fed) {
    if (count > session->total() || session->Keeps(count)) continue;
    const KeptCheckpoint earlier = session->From(count);
    session->Keep(
        {count, store_->KeepPublished(count, earlier.state.get(), ReadOf(*session, count))});
  }
}

PublishedRead ReplicatedStates::ReadOf(const Session& session, int64_t fed) {
  return [archive = archive_, mailbox = mailbox_, totals = totals_, place = PlaceOf(session, fed),
          size = store_->size()](const std::function<void(absl::StatusOr<CutState>)>& done) {
    const auto gathered = std::make_shared<Gathered>(
        place->parts.size(), [mailbox, totals, done](absl::StatusOr<CutState> state) {
          mailbox->Post([totals, status = state.status()] { totals->CountStateRead(status); });
          done(std::move(state));
        });
    for (size_t i = 0; i < place->parts.size(); ++i) {
      const std::string& name = place->Name(i);
      // Weak, because the archive must not be destroyed on its own threads.
      archive->Get(name, [weak = std::weak_ptr(archive), gathered, name, i, size,
                          wanted = place->parts[i]](const absl::StatusOr<std::string>& bytes) {
        absl::StatusOr<std::vector<float>> part = absl::NotFoundError("it is not there");
        if (!bytes.ok()) part = bytes.status();
        if (bytes.ok() && !bytes->empty()) part = DecodeArchivedState(*bytes, name, wanted.values);
        if (part.ok() && !size.AllFinite(*part, wanted.segment ? size.fixed : 0)) {
          part = absl::DataLossError("a value of the state is not finite");
        }
        if (absl::IsDataLoss(part.status())) {
          if (const auto dropping = weak.lock()) dropping->Drop(name);
        }
        gathered->Put(i, std::move(part));
      });
    }
  };
}

}  // namespace rivulet
