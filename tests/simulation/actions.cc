// SPDX-License-Identifier: Apache-2.0
// What simulated clients ask for.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/validate.h"
#include "server/sessions/snapshot.h"
#include "tests/simulation/extremes.h"
#include "tests/simulation/reader.h"
#include "tests/simulation/simulation.h"

namespace rivulet {
namespace {

std::string Of(const SessionRef& ref) {
  return absl::StrCat(ref.position ? absl::StrCat(" at ", *ref.position) : "",
                      ref.mark.empty() ? "" : absl::StrCat(" mark ", ref.mark));
}

// Where its answer was lost: the same tokens at the same position, after the same ones.
void AskAgain(const simulated::Client& client, AppendSpec* spec) {
  SessionState before = client.maybe[0];
  const int64_t position = before.size() - std::ssize(client.appended);
  if (client.appended.empty() || position < 0) return;
  before.Cut(position);
  spec->tokens = client.appended;
  spec->session.position = position;
  spec->session.hash = before.hash();
}

}  // namespace

void Simulation::Ask() {
  const int kind = choices_.Below(32);
  if (kind < 7) return Generate(/*in_session=*/false);
  if (kind < 15) return Generate(/*in_session=*/true);
  if (kind < 17) return Score();
  if (kind < 20) return Append();
  if (kind < 23) return Open();
  if (kind < 25) return Fork();
  if (kind < 27) return Rewind();
  if (kind < 28) return Close();
  if (kind < 29) return ListAll();
  if (kind < 30) return TakeSnapshot();
  Restore();
}

Simulation::Asked* Simulation::Start(std::string what) {
  Asked& asked = asked_.emplace_back();
  asked.number = ++last_number_;
  asked.what = absl::StrCat("#", asked.number, " ", what);
  asked.turn = turn_;
  return &asked;
}

void Simulation::Accepted(Asked* asked, const absl::StatusOr<RequestId>& id) {
  Note([&] {
    return absl::StrCat(asked->what,
                        id.ok() ? "" : " refused: ", id.ok() ? "" : id.status().ToString());
  });
  if (id.ok()) {
    asked->id = *id;
    if (!asked->refusal.empty()) Broken("I8: " + asked->what + " is accepted");
    asked->arrival = now_;
    asked->first = true;
    asked->runs_before = probe_->num_runs();
    std::set<std::string> tenants;
    for (const Asked& other : asked_) tenants.insert(other.tenant);
    asked->tenants = static_cast<int>(tenants.size());
    for (Asked& other : asked_) {
      if (&other == asked || other.tenant != asked->tenant) continue;
      asked->first = false;
      if (asked->priority < other.priority) other.first = false;
    }
    int places = 0;
    for (const Asked& other : asked_) places += other.places;
    const EngineLoad load = engine_->GetLoad();
    const bool told_of_all = load.queued + load.running == places;
    if (told_of_all && TenantTookTooMuch(*asked)) {
      Broken(absl::StrCat("I6: the queue of tenant \"", asked->tenant, "\""));
    }
    return;
  }
  JudgeError(*asked, id.status());
  Remove(asked);
}

void Simulation::Generate(bool in_session) {
  Asked* const asked = Start("generate");
  GenerateSpec spec = DrawGenerate();
  if (in_session) {
    spec.session = DrawSession(asked);
    DrawHash(*asked, &*spec.session);
    spec.session_seed = choices_.OneIn(2);
    if (choices_.OneIn(2)) spec.prompt.clear();
  } else {
    asked->tenant = DrawTenant();
    if (choices_.OneIn(4)) {
      const int64_t most = MaxNumSamples(world_.fake.limits, world_.options);
      spec.num_samples = choices_.Between(1, static_cast<int>(std::min<int64_t>(3, most)));
    }
  }
  spec.tenant = asked->tenant;
  asked->priority = spec.priority;
  spec.cache = DrawCache(in_session ? 20 : static_cast<int64_t>(spec.prompt.size()));
  asked->refusal = Spoil(&choices_, &spec);
  asked->goes_on = in_session || spec.cache.enabled;
  // Tokens without a text of their own wait with what may be the beginning of a stop string.
  if (!spec.stop_strings.empty() && asked->refusal.empty()) {
    const int64_t most = spec.max_tokens > 0 ? spec.max_tokens : world_.options.default_max_tokens;
    asked->held_back = spec.num_samples * std::max(most, world_.config.max_tokens().value_or(0));
  }
  asked->places = asked->refusal.empty() ? spec.num_samples : 1;
  asked->deadline = spec.deadline;
  asked->tokens = static_cast<int64_t>(spec.prompt.size());
  absl::StrAppend(&asked->what, " ", spec.prompt.size(), "+", spec.max_tokens, " tokens x",
                  spec.num_samples, spec.session ? Of(*spec.session) : "");
  const bool eager = !choices_.OneIn(4);
  asked->asleep = !eager && choices_.OneIn(3);
  auto reader = std::make_unique<Reader>(eager, asked->places);
  Reader* const listener = reader.get();
  asked->listener = std::move(reader);
  const absl::StatusOr<Engine::Ticket> ticket = engine_->Generate(spec, listener);
  if (ticket.ok()) {
    asked->reply = ticket->reply;
    // An end in the middle of Generate would have found a reader without a reply: Emit comes later.
    listener->Start(ticket->reply,
                    [this, asked, spec, listener](const SeenReply& seen, const Usage& usage) {
                      if (!listener->broken().empty())
                        Broken(absl::StrCat(asked->what, ": ", listener->broken()));
                      EndGenerate(asked, spec, seen, usage);
                    });
  }
  Accepted(asked, ticket.ok() ? absl::StatusOr<RequestId>(ticket->id) : ticket.status());
}

void Simulation::Score() {
  Asked* const asked = Start("score");
  ScoreSpec spec;
  spec.tenant = asked->tenant = DrawTenant();
  spec.priority = asked->priority = DrawPriority();
  spec.tokens = DrawTokens(15);
  if (choices_.OneIn(2)) spec.window = choices_.Between(1, 8);
  spec.want_logprobs = choices_.OneIn(2);
  const int64_t num_scored = static_cast<int64_t>(spec.tokens.size()) - (truth_.bos() == 1 ? 0 : 1);
  if (num_scored > 0 && choices_.OneIn(3)) {
    spec.output_positions.push_back(choices_.Below(static_cast<int>(num_scored)));
  }
  asked->refusal = Spoil(&choices_, &spec);
  spec.deadline = asked->deadline = DrawDeadline();
  asked->tokens = static_cast<int64_t>(spec.tokens.size());
  Accepted(asked,
           engine_->Score(spec, [this, asked, spec](const absl::StatusOr<ScoreResult>& seen) {
             EndScore(asked, spec, seen);
           }));
}

void Simulation::Append() {
  Asked* const asked = Start("append");
  AppendSpec spec;
  spec.session = DrawSession(asked);
  DrawHash(*asked, &spec.session);
  spec.priority = asked->priority = DrawPriority();
  spec.tokens = DrawPrompt();
  spec.cache = DrawCache(20);
  if (asked->client != nullptr && choices_.OneIn(3)) AskAgain(*asked->client, &spec);
  asked->goes_on = true;
  spec.score = choices_.OneIn(2);
  spec.want_logprobs = spec.score && choices_.OneIn(2);
  if (spec.score && !spec.tokens.empty() && choices_.OneIn(3)) {
    spec.output_positions.push_back(choices_.Below(static_cast<int>(spec.tokens.size())));
  }
  asked->refusal = Spoil(&choices_, &spec);
  spec.deadline = asked->deadline = DrawDeadline();
  asked->tokens = static_cast<int64_t>(spec.tokens.size());
  absl::StrAppend(&asked->what, " ", spec.tokens.size(), " tokens", Of(spec.session));
  Accepted(asked,
           engine_->Append(spec, [this, asked, spec](const absl::StatusOr<ScoreResult>& seen) {
             EndAppend(asked, spec, seen);
           }));
}

void Simulation::Open() {
  Asked* const asked = Start("open");
  OpenSpec spec;
  spec.tenant = asked->tenant = DrawTenant();
  spec.seed =
      static_cast<uint64_t>(choices_.OneIn(8) ? DrawExtreme(&choices_, 0) : choices_.Below(100));
  if (choices_.OneIn(2)) spec.idle_timeout = absl::Seconds(choices_.Between(1, 100));
  if (choices_.OneIn(40)) {
    spec.idle_timeout = absl::Seconds(DrawExtreme(&choices_, 0));
    asked->refusal = "IDLE_TIMEOUT_OUT_OF_RANGE";
  }
  spec.deadline = asked->deadline = DrawDeadline();
  Accepted(asked, OpenSession(engine_.get(), spec,
                              [this, asked, spec](const absl::StatusOr<SessionInfo>& seen) {
                                const bool well = End(asked, seen.status());
                                if (well && seen.ok()) {
                                  Count("open");
                                  const absl::Duration idle = spec.idle_timeout.value_or(
                                      world_.options.sessions.default_idle);
                                  if (seen->seed != *spec.seed || seen->position != 0 ||
                                      seen->idle_timeout != idle)
                                    Broken("a new session is not as asked for");
                                  NewClient(*seen, spec.tenant, {SessionState()});
                                }
                                Remove(asked);
                              }));
}

void Simulation::Fork() {
  Asked* const asked = Start("fork");
  ForkSpec spec;
  spec.session = DrawSession(asked);
  spec.session.mark.clear();
  spec.count = choices_.Between(1, 3);
  if (choices_.OneIn(30)) {
    spec.count = DrawExtreme32(&choices_);
    asked->refusal = "FORK_COUNT_OUT_OF_RANGE";
  }
  spec.seed =
      static_cast<uint64_t>(choices_.OneIn(8) ? DrawExtreme(&choices_, 1) : choices_.Below(100));
  spec.deadline = asked->deadline = DrawDeadline();
  asked->opens = spec.count;
  absl::StrAppend(&asked->what, " x", spec.count, Of(spec.session));
  Accepted(asked,
           ForkSession(engine_.get(), spec,
                       [this, asked, spec](const absl::StatusOr<std::vector<SessionInfo>>& seen) {
                         EndFork(asked, spec, seen);
                       }));
}

void Simulation::Rewind() {
  Asked* const asked = Start("rewind");
  SessionRef to = DrawSession(asked);
  if (choices_.OneIn(2) || to.position) {
    to.mark.clear();
    if (!to.position) to.position = 0;
  } else if (to.mark.empty()) {
    to.mark = DrawMark();
  }
  asked->deadline = DrawDeadline();
  absl::StrAppend(&asked->what, Of(to));
  Accepted(asked, RewindSession(engine_.get(), to, asked->deadline,
                                [this, asked, to](const absl::StatusOr<SessionInfo>& seen) {
                                  EndRewind(asked, to, seen);
                                }));
}

void Simulation::Close() {
  Asked* const asked = Start("close");
  const SessionRef ref = DrawSession(asked);
  Close(asked, ref);
}

void Simulation::CloseAll() {
  for (Client& client : clients_) {
    if (client.gone) continue;
    Asked* const asked = Start(absl::StrCat("close ", client.number));
    asked->client = &client;
    asked->tenant = client.tenant;
    SessionRef ref;
    ref.id = client.id;
    ref.tenant = client.tenant;
    Close(asked, ref);
  }
}

void Simulation::Close(Asked* asked, const SessionRef& ref) {
  asked->closes = true;
  const absl::StatusOr<RequestId> id =
      CloseSession(engine_.get(), ref, [this, asked](const absl::Status& status) {
        if (End(asked, status) && status.ok()) {
          Count("close");
          asked->client->gone = true;
          asked->client->gone_turn = asked->turn + 1;
          for (const Asked& other : asked_) {
            if (other.client == asked->client && !other.foreign && other.number < asked->number) {
              Broken(absl::StrCat("I8: ", other.what, " goes on after ", asked->what));
            }
          }
        }
        Remove(asked);
      });
  if (id.ok() && asked->client != nullptr && !asked->foreign) asked->client->closing = true;
  Accepted(asked, id);
}

void Simulation::ListAll() {
  Asked* const asked = Start("list");
  const std::string tenant = asked->tenant = DrawTenant();
  ListSpec spec{tenant};
  const bool beyond = choices_.OneIn(20);  // of the last page
  if (beyond) spec.after = static_cast<uint64_t>(DrawExtreme(&choices_, 0));
  Accepted(asked,
           ListSessions(engine_.get(), spec, [=, this](const absl::StatusOr<SessionPage>& seen) {
             if (End(asked, seen.status()) && seen.ok()) {
               if (beyond && !seen->sessions.empty()) Broken("I9: a page too far");
               if (!beyond) EndList(*asked, tenant, seen->sessions);
             }
             Remove(asked);
           }));
}

void Simulation::TakeSnapshot() {
  Asked* const asked = Start("snapshot");
  SessionRef ref = DrawSession(asked);
  asked->goes_on = true;
  ref.mark.clear();
  absl::StrAppend(&asked->what, Of(ref));
  asked->deadline = DrawDeadline();
  Accepted(asked, SnapshotSession(engine_.get(), ref, asked->deadline,
                                  [this, asked, ref](const absl::StatusOr<SessionImage>& seen) {
                                    EndSnapshot(asked, ref, seen);
                                  }));
}

void Simulation::Restore() {
  if (snapshots_.empty()) return;
  const Kept& kept =
      snapshots_[static_cast<size_t>(choices_.Below(static_cast<int>(snapshots_.size())))];
  std::string bytes = kept.bytes;
  const bool damage = choices_.OneIn(3);
  if (damage) {
    const size_t at = static_cast<size_t>(choices_.Below(static_cast<int>(bytes.size())));
    if (choices_.OneIn(2)) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << choices_.Below(8)));
    }
  }
  absl::StatusOr<Snapshot> read = DecodeSnapshot(bytes, "");
  if (damage || !read.ok()) {
    Count(read.ok() ? "" : ReasonOf(read.status()));
    if (!damage) Broken("a snapshot cannot be read: " + read.status().ToString());
    if (read.ok()) Broken("I5: a damaged snapshot is taken for a good one");
    JudgeMessage(read.status());
    return;
  }
  Asked* const asked = Start("restore");
  RestoreSpec spec;
  spec.tenant = asked->tenant = read->tenant;
  for (size_t i = 0; i < read->tokens.size(); ++i)
    spec.sequence.Append(read->tokens[i], read->generated[i]);
  spec.seed = read->seed;
  spec.marks = read->marks;
  spec.fed = read->fed;
  spec.state = std::move(read->state);
  spec.deadline = asked->deadline = DrawDeadline();
  asked->restores = kept.state;
  const std::string tenant = kept.tenant;
  const uint64_t seed = kept.seed;
  Accepted(asked,
           RestoreSession(engine_.get(), std::move(spec),
                          [this, asked, tenant, seed](const absl::StatusOr<SessionInfo>& seen) {
                            if (End(asked, seen.status()) && seen.ok()) {
                              Count("restore");
                              Client* const client = NewClient(*seen, tenant, {*asked->restores});
                              if (client->seed != seed || !Fits(*seen, *client, *asked->restores))
                                Broken("a restored session is not the one that was kept");
                            }
                            Remove(asked);
                          }));
}

void Simulation::CancelSomething() {
  if (asked_.empty()) return;
  auto chosen = asked_.begin();
  std::advance(chosen, choices_.Below(static_cast<int>(asked_.size())));
  RequestId id = chosen->id;
  if (choices_.OneIn(8))
    id = static_cast<RequestId>(choices_.Below(last_number_ + 2));  // anybody's
  for (Asked& asked : asked_) {
    if (asked.id != id) continue;
    Note([&] { return absl::StrCat("cancel ", asked.what); });
    if (!asked.cancelled) asked.cancelled = turn_;
  }
  engine_->Cancel(id);
}

void Simulation::ReadOf(Asked* asked) {
  if (asked->listener == nullptr) return;
  static_cast<Reader*>(asked->listener.get())->Take();
  asked->full_since.reset();
}

void Simulation::Read() {
  if (asked_.empty()) return;
  auto reader = asked_.begin();
  std::advance(reader, choices_.Below(static_cast<int>(asked_.size())));
  if (!reader->asleep) ReadOf(&*reader);
}

}  // namespace rivulet
