// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/replicas.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/sessions/sequence_hash.h"
#include "tests/support/lone_session.h"

namespace rivulet {
namespace {

constexpr size_t kReplicas = 3, kClients = 4;
// Turns that a client waits for its reply before it asks another replica.
constexpr int kPatience = 60;

}  // namespace

// One session and whoever uses it: one request after another, each repeated until it is answered.
class Replicas::Client {
 public:
  Client(Replicas* world, int number) : world_(world), number_(number) {}

  bool idle() const { return kind_ == Kind::kNone; }
  void Act() {
    if (kind_ != Kind::kNone) return Wait();
    if (!world_->choices_.OneIn(3)) return;
    if (!open_) {
      durability_.lossy = world_->lossy_;
      const bool expires = world_->choices_.OneIn(2);
      idle_ = expires ? absl::Seconds(world_->choices_.Between(1, 5)) : absl::Hours(100);
      return Begin(Kind::kOpen);
    }
    const int choice = world_->choices_.Below(20);
    Begin(choice < 12   ? Kind::kGenerate
          : choice < 15 ? Kind::kAppend
          : choice < 17 ? Kind::kRewind
          : choice < 18 ? Kind::kLook
          : choice < 19 ? Kind::kFork
                        : Kind::kClose);
  }
  // Its replica is gone.
  void Lost(size_t replica) {
    if (kind_ != Kind::kNone && replica_ == replica) gone_ = true;
  }

 private:
  enum class Kind : uint8_t {
    kNone,
    kOpen,
    kGenerate,
    kAppend,
    kRewind,
    kLook,
    kFork,
    kClose,
    kRepair
  };
  // The listener of one attempt. Attempts that were given up stay until the end.
  struct Ear final : ReplyListener {
    void OnReady() override {
      const std::optional<Reply::End> end = reply->end();
      for (ReplyDelta& delta : reply->Take()) {
        if (!delta.tokens.empty() && delta.first_position != static_cast<int64_t>(tokens.size())) {
          gap = true;
        }
        tokens.insert(tokens.end(), delta.tokens.begin(), delta.tokens.end());
        if (delta.session) progress = delta.session;
        if (delta.finish) finish = delta.finish;
      }
      if (end) done = end;
    }
    std::shared_ptr<Reply> reply;
    std::vector<int32_t> tokens;
    std::optional<SessionProgress> progress;
    std::optional<Finish> finish;
    std::optional<Reply::End> done;
    bool gap = false;
  };
  struct Attempt {
    Ear ear;
    RequestId id = 0;
    std::optional<absl::Status> status;  // of what is no Generate
    std::optional<Durability> durability;
    std::vector<SessionInfo> infos;
  };

  void Note(const std::string& what) { world_->Note(absl::StrCat("client ", number_, ": ", what)); }

  void Begin(Kind kind) {
    Choices& choices = world_->choices_;
    kind_ = kind;
    repeated_ = false;
    first_.reset();
    received_.clear();
    asked_.given.clear();
    if (kind == Kind::kGenerate || kind == Kind::kAppend) {
      const int count = choices.Between(tokens_.empty() ? 1 : 0, 6);
      for (int i = 0; i < count; ++i) asked_.given.push_back(choices.Below(50));
    }
    asked_.max_tokens = choices.OneIn(6) ? choices.Between(100, 1500) : choices.Between(1, 30);
    asked_.rewind_to = choices.Below(static_cast<int>(tokens_.size()) + 1);
    Send();
  }

  SessionRef Ref() const {
    SessionRef ref{id_, "t", static_cast<int64_t>(tokens_.size()), ""};
    ref.hash = HashTokens(kEmptySequenceHash, tokens_);
    ref.repeated = repeated_;
    return ref;
  }

  void Send() {
    replica_ = static_cast<size_t>(world_->choices_.Below(kReplicas));
    gone_ = false;
    waited_ = 0;
    sent_ = world_->now_;
    attempts_.push_back(std::make_unique<Attempt>());
    Attempt* const attempt = attempts_.back().get();
    SteppedEngine* const engine = world_->replicas_[replica_].engine.get();
    const absl::Status status = Submit(engine, attempt);
    if (!status.ok()) attempt->status = status;
  }

  absl::Status Submit(SteppedEngine* engine, Attempt* attempt) {
    const auto take = [attempt](const auto& result) { attempt->status = result.status(); };
    const absl::Time never = absl::InfiniteFuture();
    absl::StatusOr<RequestId> id = RequestId{0};
    switch (kind_) {
      case Kind::kNone:
        break;
      case Kind::kOpen:
        id = OpenSession(engine, {"t", seed_, idle_}, [attempt](absl::StatusOr<SessionInfo> info) {
          attempt->status = info.status();
          if (info.ok()) attempt->infos = {*info};
        });
        break;
      case Kind::kGenerate:
        return SubmitGenerate(engine, attempt);
      case Kind::kAppend: {
        AppendSpec spec;
        spec.session = Ref();
        spec.tokens = asked_.given;
        id = engine->Append(spec, [attempt](absl::StatusOr<ScoreResult> result) {
          attempt->status = result.status();
          if (result.ok()) attempt->durability = result->durability;
        });
        break;
      }
      case Kind::kRewind: {
        SessionRef ref{id_, "t", asked_.rewind_to, ""};
        id = RewindSession(engine, ref, never, take);
        break;
      }
      case Kind::kRepair:
      case Kind::kLook:
        id = GetSession(engine, {id_, "t", std::nullopt, ""}, never,
                        [attempt](absl::StatusOr<SessionInfo> info) {
                          attempt->status = info.status();
                          if (info.ok()) attempt->infos = {*info};
                        });
        break;
      case Kind::kFork: {
        ForkSpec spec;
        spec.session = Ref();
        spec.seed = seed_ + 1;
        id = ForkSession(engine, spec, [attempt](absl::StatusOr<std::vector<SessionInfo>> infos) {
          attempt->status = infos.status();
          if (infos.ok()) attempt->infos = *infos;
        });
        break;
      }
      case Kind::kClose:
        id = CloseSession(engine, {id_, "t", std::nullopt, ""},
                          [attempt](const absl::Status& status) { attempt->status = status; });
        break;
    }
    if (id.ok()) attempt->id = *id;
    return id.status();
  }

  absl::Status SubmitGenerate(SteppedEngine* engine, Attempt* attempt) {
    GenerateSpec spec;
    spec.tenant = "t";
    spec.session = Ref();
    spec.session_seed = true;
    spec.prompt = asked_.given;
    spec.max_tokens = asked_.max_tokens;
    if (repeated_ && first_ && !received_.empty()) {
      spec.resume.emplace();
      spec.resume->fingerprint = *first_;
      spec.resume->tokens = {received_};
    }
    attempt->ear.tokens = received_;
    absl::StatusOr<std::shared_ptr<Reply>> submitted = engine->Generate(spec, &attempt->ear);
    if (!submitted.ok()) return submitted.status();
    attempt->ear.reply = *submitted;
    attempt->id = (*submitted)->id();
    return absl::OkStatus();
  }

  void Wait() {
    Attempt* const attempt = attempts_.back().get();
    if (kind_ == Kind::kGenerate) CheckTokens(*attempt);
    if (attempt->ear.done) {
      attempt->status = attempt->ear.done->status;
      attempt->durability = attempt->ear.done->durability;
    }
    if (attempt->status && !gone_) return Take(attempt);
    const bool cut = world_->choices_.OneIn(200);
    if (!gone_ && !cut && ++waited_ < kPatience) return;
    // The stream is lost: the server notices that if it can.
    const Replica& replica = world_->replicas_[replica_];
    if (!gone_ && attempt->id != 0) replica.engine->Cancel(attempt->id);
    world_->Count("lost reply");
    Repeat(attempt);
  }

  void Repeat(Attempt* attempt) {
    repeated_ = true;
    if (kind_ == Kind::kGenerate) {
      received_ = attempt->ear.tokens;
      if (attempt->ear.reply != nullptr && attempt->ear.reply->fingerprint()) {
        first_ = attempt->ear.reply->fingerprint();
      }
    }
    Send();
  }

  // What a lone run draws.
  std::vector<int32_t> Truth() const {
    std::vector<int32_t> feed = {*world_->config_.bos_token_id};
    feed.insert(feed.end(), tokens_.begin(), tokens_.end());
    feed.insert(feed.end(), asked_.given.begin(), asked_.given.end());
    GenerateSpec spec;
    spec.sampling.seed = seed_;
    return FakeSolo(world_->config_, nullptr, feed, SamplerFor(spec, world_->config_),
                    asked_.max_tokens);
  }

  void CheckTokens(const Attempt& attempt) {
    if (attempt.ear.gap) world_->Break("a gap in a reply");
    if (attempt.ear.tokens.size() == checked_ && !attempt.ear.done) return;
    checked_ = attempt.ear.tokens.size();
    std::vector<int32_t> truth = Truth();
    const std::optional<Finish>& finish = attempt.ear.finish;
    if (finish && finish->reason == FinishReason::kStopToken) truth.pop_back();
    const bool prefix =
        attempt.ear.tokens.size() <= truth.size() &&
        std::equal(attempt.ear.tokens.begin(), attempt.ear.tokens.end(), truth.begin());
    if (!prefix) world_->Break(absl::StrCat("client ", number_, " got a wrong token"));
    const bool ok = attempt.ear.done && attempt.ear.done->status.ok();
    if (ok && attempt.ear.tokens != truth) world_->Break("a reply ended too early");
  }

  void Take(Attempt* attempt) {
    const absl::Status status = *attempt->status;
    const std::string reason = status.ok() ? "OK" : GetErrorDetail(status).reason;
    Note(absl::StrCat(static_cast<int>(kind_), " on ", replica_, ": ", reason));
    world_->Count(reason);
    if (status.ok()) return Succeed(attempt);
    if (reason == "SESSION_STORE" || reason == "SESSION_MOVED" || reason == "SESSION_BUSY" ||
        reason == "CANCELLED") {
      return Repeat(attempt);
    }
    // Its session may have grown, so this client cannot go on with it.
    if (reason == "TENANT_STORE_LIMIT" && repeated_ && open_) return Begin(Kind::kClose);
    // Stale copies and forks count, too, until they expire.
    if (reason == "SESSION_LIMIT" || reason == "TENANT_SESSION_LIMIT" ||
        reason == "TENANT_STORE_LIMIT") {
      kind_ = Kind::kNone;
      return;
    }
    const bool gone = reason == "SESSION_NOT_FOUND" || reason == "SESSION_CLOSED";
    if (kind_ == Kind::kClose && gone && repeated_) return Closed();  // the first one did it
    const bool differs = reason == "SESSION_HASH_MISMATCH" || reason == "POSITION_OUT_OF_RANGE" ||
                         reason == "RESUME_MISMATCH" || reason == "GIVEN_TOKENS_BEYOND_POSITION";
    // A late write may bring a record back into a store that was emptied, without its chunks.
    const bool damaged = reason == "SESSION_RECORD_DAMAGED";
    if (!gone && !differs && !damaged)
      return world_->Break(absl::StrCat("unexpected: ", status.message()));
    if (MayHaveExpired()) {
      world_->Count("expired");
      return Closed();
    }
    if (durability_.lossy != world_->lossy_) {
      world_->Count("reported loss");
      return Closed();
    }
    if (differs && durability_.tokens < tokens_.size()) {
      return Begin(Kind::kRepair);
    }
    world_->Break(
        absl::StrCat("client ", number_, ": what was durable is lost: ", status.message()));
  }

  void Succeed(Attempt* attempt) {
    switch (kind_) {
      case Kind::kNone:
        break;
      case Kind::kFork: {
        SessionId other = attempt->infos[0].id;
        if (world_->choices_.OneIn(2)) {  // the conversation goes on in the fork
          std::swap(id_, other);
          ++seed_;
          durability_.tokens = tokens_.size();
          durability_.since = sent_;
        }
        CloseOther(other);
        break;
      }
      case Kind::kOpen:
        id_ = attempt->infos[0].id;
        open_ = true;
        durability_.since = sent_;
        break;
      case Kind::kGenerate:
        tokens_.insert(tokens_.end(), asked_.given.begin(), asked_.given.end());
        tokens_.insert(tokens_.end(), attempt->ear.tokens.begin(), attempt->ear.tokens.end());
        CheckProgress(attempt->ear.progress);
        break;
      case Kind::kAppend:
        tokens_.insert(tokens_.end(), asked_.given.begin(), asked_.given.end());
        break;
      case Kind::kRewind:
        tokens_.resize(static_cast<size_t>(asked_.rewind_to));
        durability_.tokens = std::min(durability_.tokens, tokens_.size());
        break;
      case Kind::kLook:
        CheckLook(attempt->infos[0]);
        break;
      case Kind::kRepair:
        return Repair(attempt->infos[0]);
      case Kind::kClose:
        return Closed();
    }
    if (attempt->durability) {
      Note(absl::StrCat(attempt->durability->complete ? "durable" : "not durable", " up to ",
                        attempt->durability->position, " of ", tokens_.size()));
      world_->Count(attempt->durability->complete ? "durable" : "not durable");
      if (attempt->durability->complete) {
        durability_.tokens = tokens_.size();
        durability_.since = sent_;
      }
    } else if (kind_ == Kind::kGenerate || kind_ == Kind::kAppend) {
      world_->Break("a reply does not say whether it is durable");
    }
    checked_ = 0;
    kind_ = Kind::kNone;
  }

  // Of a session and its fork, the one that nobody uses: else these would soon be all that may be
  // open. Where the call is lost, one stays.
  void CloseOther(const SessionId& id) {
    Replica& replica = world_->replicas_[replica_];
    (void)CloseSession(replica.engine.get(), {id, "t", std::nullopt, ""},
                       [](const absl::Status&) {});
  }

  void CheckProgress(const std::optional<SessionProgress>& progress) {
    if (!progress) return;
    if (progress->position != static_cast<int64_t>(tokens_.size()) ||
        progress->hash != HashTokens(kEmptySequenceHash, tokens_)) {
      world_->Break("a reply ends at another position than its tokens");
    }
  }

  // The store may be behind by what was not durable, and never by more.
  // Some of what was not durable is lost: it continues from what the session has.
  void Repair(const SessionInfo& info) {
    const auto position = static_cast<size_t>(info.position);
    const bool ours = position >= durability_.tokens && position <= tokens_.size() &&
                      info.hash == HashTokens(kEmptySequenceHash,
                                              std::span<const int32_t>(tokens_).first(position));
    if (!ours) world_->Break("what is left of a session is not what its client saw");
    world_->Count("lost and not durable");
    tokens_.resize(std::min(position, tokens_.size()));
    checked_ = 0;
    kind_ = Kind::kNone;
  }

  // A late write may then bring an early record of it.
  bool MayHaveExpired() const { return world_->now_ - durability_.since >= idle_; }

  void CheckLook(const SessionInfo& info) {
    const bool sane = info.position >= static_cast<int64_t>(durability_.tokens) &&
                      info.position <= static_cast<int64_t>(tokens_.size());
    if (durability_.lossy != world_->lossy_ || MayHaveExpired()) return;
    if (durability_.tokens == tokens_.size() && !sane) {
      world_->Break("GetSession is behind what was durable");
    }
  }

  void Closed() {
    open_ = false;
    tokens_.clear();
    durability_.tokens = checked_ = 0;
    ++seed_;
    kind_ = Kind::kNone;
  }

  Replicas* const world_;
  const int number_;
  bool open_ = false;
  SessionId id_;
  uint64_t seed_ = 7;
  std::vector<int32_t> tokens_;  // that the session has, as its client knows
  absl::Duration idle_;          // its idle time-out
  struct Durable {
    size_t tokens = 0;  // of these
    absl::Time since;   // the store has had it, unless it lost it
    int lossy = 0;      // Replicas::lossy_ when it was opened
  } durability_;

  Kind kind_ = Kind::kNone;
  size_t replica_ = 0;
  bool gone_ = false, repeated_ = false;
  int waited_ = 0;
  absl::Time sent_;  // the last attempt
  struct Asked {
    std::vector<int32_t> given;
    int64_t max_tokens = 0, rewind_to = 0;
  } asked_;
  std::vector<int32_t> received_;
  std::optional<uint64_t> first_;  // fingerprint of what was received
  size_t checked_ = 0;
  std::vector<std::unique_ptr<Attempt>> attempts_;
};

Replicas::Replicas(uint64_t seed, const ReplicasOptions& options)
    : options_(options),
      choices_(seed),
      server_([this] { return now_ + store_is_ahead_; }),
      replicas_(kReplicas) {
  limits_.max_idle = absl::Hours(1000);
  if (choices_.OneIn(2)) limits_.max_open_sessions = choices_.Between(2, 12);
  if (choices_.OneIn(4)) limits_.max_tenant_bytes = choices_.Between(2000, 20'000);
  archive_->holds = true;
  for (size_t i = 0; i < kReplicas; ++i) StartReplica(i);
  for (size_t i = 0; i < kClients; ++i) {
    clients_.push_back(std::make_unique<Client>(this, static_cast<int>(i)));
  }
}

Replicas::~Replicas() {
  for (auto* list : {&replicas_, &killed_}) {
    for (Replica& replica : *list) {
      replica.engine.reset();  // before the listeners, which it calls
      replica.store.reset();
    }
  }
}

void Replicas::Note(const std::string& what) {
  if (options_.verbose) std::printf("%s\n", what.c_str());
}

void Replicas::Break(const std::string& what) {
  Note(absl::StrCat("BROKEN: ", what));
  if (broken_.empty()) broken_ = what;
}

void Replicas::StartReplica(size_t index) {
  Replica& replica = replicas_[index];
  replica.store = std::make_shared<MemorySessionStore>(&server_);
  EngineOptions options;
  options.session_store = replica.store;
  options.state_archive = archive_;
  options.publish.after_tokens = choices_.Between(1, 12);
  options.sessions = limits_;
  replica.engine = CreateSteppedEngine(
      config_, nullptr,
      std::make_unique<FakeBackend>(config_, FakeBackendOptions(), std::make_shared<FakeProbe>()),
      options,
      Clock([this] { return now_ + replicas_are_ahead_; },
            [this] { return now_ - absl::UnixEpoch(); }));
  replica.stopped = false;
}

void Replicas::Kill(size_t index) {
  Count("kill");
  Note(absl::StrCat("kill ", index));
  killed_.push_back(std::move(replicas_[index]));
  StartReplica(index);
  for (auto& client : clients_) client->Lost(index);
}

void Replicas::TakeTurn(size_t index) {
  if (replicas_[index].stopped) return;
  replicas_[index].engine->Turn();
  replicas_[index].engine->Emit();
}

void Replicas::Deliver(size_t index) {
  const bool dead = index >= replicas_.size();
  Replica& replica = dead ? killed_[index - replicas_.size()] : replicas_[index];
  StoreFate fate = StoreFate::kAnswered;
  if (choices_.Below(100) < harm_) {
    fate = choices_.OneIn(2) ? StoreFate::kRequestLost : StoreFate::kAnswerLost;
  }
  replica.store->Deliver(fate);
}

void Replicas::HarmStore() {
  switch (choices_.Below(7)) {
    case 0:
      harm_ = choices_.OneIn(2) ? 100 : choices_.Between(1, 60);
      Count("store harmed");
      break;
    case 1:
      harm_ = 0;
      break;
    case 2:
      harm_ = 0;
      if (!choices_.OneIn(4) || server_.chunks() == 0) break;
      server_.LoseChunk(static_cast<size_t>(choices_.Below(static_cast<int>(server_.chunks()))));
      ++lossy_;
      Count("lost chunk");
      break;
    case 3:
      if (server_.writes() > 0) {
        server_.Repeat(static_cast<size_t>(
            choices_.Below(static_cast<int>(std::min<size_t>(server_.writes(), 65536)))));
        Count("late write");
      }
      break;
    case 4:
      if (!choices_.OneIn(4)) {
        image_ = server_.Image();
      } else if (image_) {
        server_.Restore(*image_);
        ++lossy_;
        Count("failover");
        Note("failover");
      }
      break;
    case 5:
      if (!choices_.OneIn(8)) break;
      server_.Empty();
      image_.reset();
      ++lossy_;
      Count("emptied");
      Note("emptied");
      break;
    case 6:
      (choices_.OneIn(2) ? store_is_ahead_ : replicas_are_ahead_) -=
          absl::Seconds(choices_.Between(1, 1000));
      Count("clock back");
      break;
  }
}

// States are lost or damaged, or the archive fails for a while.
void Replicas::HarmArchive() {
  if (choices_.OneIn(3)) {
    archive_->fails = !archive_->fails;
    return;
  }
  if (archive_->states.empty()) return;
  auto state = archive_->states.begin();
  std::advance(state, choices_.Below(static_cast<int>(archive_->states.size())));
  if (choices_.OneIn(2)) {
    archive_->states.erase(state);
    return;
  }
  char& byte =
      state->second[static_cast<size_t>(choices_.Below(static_cast<int>(state->second.size())))];
  byte = static_cast<char>(byte ^ (1 << choices_.Below(8)));
}

void Replicas::Event() {
  const auto index = static_cast<size_t>(choices_.Below(kReplicas));
  const int choice = choices_.Below(100);
  if (choice < 40) {
    TakeTurn(index);
  } else if (choice < 70) {
    const size_t all = replicas_.size() + killed_.size();
    Deliver(static_cast<size_t>(choices_.Below(static_cast<int>(all))));
    if (!archive_->held.empty() && choices_.OneIn(2)) archive_->DeliverOne();
  } else if (choice < 90) {
    clients_[static_cast<size_t>(choices_.Below(kClients))]->Act();
  } else if (choice < 96) {
    now_ +=
        absl::Milliseconds(choices_.OneIn(8) ? choices_.Between(1, 3000) : choices_.Between(1, 80));
  } else if (choice < 97) {
    if (choices_.OneIn(3)) Kill(index);
  } else if (choice < 98) {
    replicas_[index].stopped = !replicas_[index].stopped;
    Count("stopped or continued");
  } else {
    HarmStore();
    if (choices_.OneIn(3)) HarmArchive();
  }
}

// From now on nothing fails: every client is answered.
void Replicas::Heal() {
  harm_ = 0;
  archive_->fails = archive_->holds = false;
  for (Replica& replica : replicas_) replica.stopped = false;
  for (int round = 0; round < 20000 && broken_.empty(); ++round) {
    archive_->Deliver();
    for (size_t i = 0; i < kReplicas; ++i) {
      while (replicas_[i].store->Deliver()) {
      }
      TakeTurn(i);
    }
    now_ += absl::Milliseconds(5);
    bool idle = true;
    for (auto& client : clients_) {
      if (!client->idle()) client->Act();
      idle &= client->idle();
    }
    // Also requests whose client has gone away.
    for (const Replica& replica : replicas_) idle &= replica.engine->GetLoad().queued == 0;
    if (idle) return;
  }
  if (broken_.empty()) Break("a request gets no answer although nothing fails any more");
}

std::string Replicas::Run() {
  for (int i = 0; i < options_.events && broken_.empty(); ++i) Event();
  if (broken_.empty()) Heal();
  for (const Replica& replica : replicas_) {
    const ReplicaTotals shared = replica.engine->GetLoad().replication;
    counts_["state published"] += shared.states_published;
    counts_["state read"] += shared.states_read;
    counts_["state missing"] += shared.states_missing;
  }
  return broken_;
}

}  // namespace rivulet
