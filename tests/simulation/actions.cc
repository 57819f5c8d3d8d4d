// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/actions.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/reply_fingerprint.h"
#include "server/engine/validate.h"
#include "server/sessions/snapshot.h"
#include "tests/simulation/extremes.h"
#include "tests/simulation/reader.h"
#include "tests/simulation/truth.h"
#include "tests/support/text_of.h"

namespace rivulet::simulated {
namespace {

std::string Of(const SessionRef& ref) {
  return absl::StrCat(ref.position ? absl::StrCat(" at ", *ref.position) : "",
                      ref.mark.empty() ? "" : absl::StrCat(" mark ", ref.mark));
}

// Where its answer was lost: the same tokens at the same position, after the same ones.
void AskAgain(const Client& client, AppendSpec* spec) {
  SessionState before = client.maybe[0];
  const int64_t position = before.size() - std::ssize(client.appended);
  if (client.appended.empty() || position < 0) return;
  before.Cut(position);
  spec->tokens = client.appended;
  spec->session.position = position;
  spec->session.hash = before.hash();
}

void ReadOf(Asked* asked) {
  if (asked->listener == nullptr) return;
  static_cast<Reader*>(asked->listener.get())->Take();
  asked->full_since.reset();
}

}  // namespace

void Actions::Ask() {
  const int kind = choices_->Below(32);
  if (kind < 7) return Generate(/*in_session=*/false);
  if (kind < 15) return Generate(/*in_session=*/true);
  if (kind < 17) return Score();
  if (kind < 20) return Append();
  if (kind < 23) return Open();
  if (kind < 25) return Fork();
  if (kind < 27) return Rewind();
  if (kind < 28) return Close();
  if (kind < 29) return List();
  if (kind < 30) return TakeSnapshot();
  Restore();
}

void Actions::Accepted(Asked* asked, const absl::StatusOr<RequestId>& id) {
  if (!id.ok()) {
    journal_->Note(asked->what, " refused: ", id.status());
    judges_.status->Error(*asked, id.status());
    requests_->Remove(asked);
    return;
  }
  journal_->Note(asked->what);
  if (!asked->refusal.empty()) journal_->Broken("I8: ", asked->what, " is accepted");
  requests_->Accept(asked, *id, engine_->probe().num_runs());
  const EngineLoad load = engine_->load();
  const bool told_of_all = load.queued + load.running == requests_->places();
  if (told_of_all && requests_->TenantTookTooMuch(*asked, engine_->world())) {
    journal_->Broken("I6: the queue of tenant \"", asked->tenant, "\"");
  }
}

void Actions::Generate(bool in_session) {
  Asked* const asked = requests_->Start("generate");
  GenerateSpec spec = draws_.Generate();
  if (in_session) {
    spec.session = draws_.Session(asked);
    draws_.Hash(*asked, &*spec.session);
    spec.session_seed = choices_->OneIn(2);
    if (choices_->OneIn(2)) spec.prompt.clear();
  } else {
    asked->tenant = draws_.Tenant();
    if (choices_->OneIn(4)) {
      const int64_t most = MaxNumSamples(engine_->world().fake.limits, engine_->world().options);
      spec.num_samples = choices_->Between(1, static_cast<int>(std::min<int64_t>(3, most)));
    }
  }
  spec.tenant = asked->tenant;
  if (spec.constraint) journal_->Count("constraint");
  if (spec.constraint && !in_session && choices_->OneIn(10)) {
    spec.constraint->choices.push_back("fail");
  }
  asked->priority = spec.priority;
  spec.cache = draws_.Cache(in_session ? 20 : static_cast<int64_t>(spec.prompt.size()));
  asked->refusal = Spoil(choices_, &spec);
  asked->goes_on = in_session || spec.cache.enabled;
  // Tokens without a text of their own wait with what may be the beginning of a stop string.
  // Tokens that a constraint forces come together.
  if ((!spec.stop_strings.empty() || spec.constraint) && asked->refusal.empty()) {
    const int64_t most =
        spec.max_tokens > 0 ? spec.max_tokens : engine_->world().options.default_max_tokens;
    asked->held_back =
        spec.num_samples * std::max(most, engine_->world().config.max_tokens().value_or(0));
  }
  asked->places = asked->refusal.empty() ? spec.num_samples : 1;
  asked->deadline = spec.deadline;
  asked->tokens = static_cast<int64_t>(spec.prompt.size());
  absl::StrAppend(&asked->what, " ", spec.prompt.size(), "+", spec.max_tokens, " tokens x",
                  spec.num_samples, spec.session ? Of(*spec.session) : "");
  std::vector<SeenSample> had(static_cast<size_t>(asked->places));
  if (CanResume(*asked, spec) && choices_->OneIn(3)) had = Resume(asked->client, &spec);
  if (spec.resume) {
    for (const auto& sample : spec.resume->tokens) asked->tokens += std::ssize(sample);
    absl::StrAppend(&asked->what, " resumed", spec.session ? Of(*spec.session) : "", " with ",
                    spec.resume->tokens[0].size(), " tokens");
  }
  if (spec.speculation.drafts != 0 && asked->refusal.empty()) {
    Predict(*asked, &spec);
    asked->tokens += std::ssize(spec.speculation.prediction);  // which the queue counts, too
  }
  const bool eager = !choices_->OneIn(4);
  asked->asleep = !eager && choices_->OneIn(3);
  auto reader = std::make_unique<Reader>(eager, std::move(had));
  Reader* const listener = reader.get();
  asked->listener = std::move(reader);
  GenerateSpec sent = spec;  // the judges need the hash, the engine does not
  if (spec.session && spec.resume && choices_->OneIn(2)) {
    sent.session->hash.reset();
    if (choices_->OneIn(2)) sent.session->hash = *spec.session->hash + 1;
  }
  const absl::StatusOr<std::shared_ptr<Reply>> submitted = engine_->get()->Generate(sent, listener);
  if (submitted.ok()) {
    asked->reply = *submitted;
    // An end in the middle of Generate would have found a reader without a reply: Emit comes later.
    listener->Start(*submitted,
                    [this, asked, spec, listener](const SeenReply& seen, const Usage& usage) {
                      if (!listener->broken().empty())
                        journal_->Broken(asked->what, ": ", listener->broken());
                      judges_.results->Generate(asked, spec, seen, usage);
                    });
  }
  Accepted(asked,
           submitted.ok() ? absl::StatusOr<RequestId>((*submitted)->id()) : submitted.status());
}

void Actions::Predict(const Asked& asked, GenerateSpec* spec) {
  const World& world = engine_->world();
  if (world.fake.limits.drafts.most == 0 || (spec->session && asked.client == nullptr)) return;
  const Truth truth(world);
  SessionState from;
  GenerateSpec drawn = *spec;
  if (spec->session) {
    from = asked.client->maybe[0];
    int64_t appended = 0;
    if (!truth.Extend(*spec->session, spec->prompt, &from, &appended).empty()) return;
    if (spec->session_seed) drawn.sampling.seed = asked.client->seed;
  } else {
    for (const int32_t token : spec->prompt) from.Append(token, false);
  }
  const int wrong = choices_->Between(1, 12);  // of how many tokens one
  for (int32_t token : truth.Draw(from, drawn, 0).tokens) {
    if (choices_->OneIn(wrong)) token = choices_->Below(world.letters);
    spec->speculation.prediction.push_back(token);
  }
}

// Penalties see which tokens were given, and sequence_hash does not: with them a client must know
// what its session holds, or it has tokens that no session would draw.
bool Actions::CanResume(const Asked& asked, const GenerateSpec& spec) const {
  if (!asked.refusal.empty()) return false;
  if (!spec.session) return true;
  if (asked.client == nullptr || asked.foreign) return false;
  const auto others = std::count_if(requests_->begin(), requests_->end(), [&](const Asked& other) {
    return other.client == asked.client;
  });
  return !spec.sampling.has_penalties() || (others == 1 && asked.client->maybe.size() == 1);
}

// Of each sample the client has any part, as if a reply had been lost. In a session it began at any
// position, and others may change what is before that until the request has its turn.
std::vector<SeenSample> Actions::Resume(const Client* client, GenerateSpec* spec) {
  const World& world = engine_->world();
  const Truth truth(world);
  SessionState prompt;
  GenerateSpec lost = *spec;
  uint64_t before = ModelFingerprint({"", "", engine_->get()->limits().numerics_id, "config"});
  if (client != nullptr) {
    prompt = client->maybe[0];
    prompt.Cut(choices_->Between(0, static_cast<int>(prompt.size())));
    spec->session->position = prompt.size();
    spec->session->hash = prompt.hash();
    spec->session->repeated = true;
    if (spec->session_seed) lost.sampling.seed = client->seed;
    before = SessionFingerprint(before, client->id, prompt.size(), prompt.hash());
  }
  for (const int32_t token : spec->prompt) prompt.Append(token, false);
  const ModelView view{&world.config, world.tokenizer.get()};
  const int64_t max_new = MostNewTokens(*spec, view, world.options).asked;
  spec->resume.emplace();
  spec->resume->fingerprint = ReplyFingerprint(before, lost, max_new);
  std::vector<SeenSample> had(static_cast<size_t>(spec->num_samples));
  for (size_t i = 0; i < had.size(); ++i) {
    const Drawn drawn = truth.Draw(prompt, lost, static_cast<uint32_t>(i));
    const auto count = choices_->Between(0, static_cast<int>(drawn.tokens.size()));
    had[i].tokens.assign(drawn.tokens.begin(), drawn.tokens.begin() + count);
    if (spec->want_logprobs) {
      had[i].logprobs.assign(drawn.logprobs.begin(), drawn.logprobs.begin() + count);
    }
    if (world.tokenizer) had[i].text = testing::TextOf(*world.tokenizer, had[i].tokens);
    spec->resume->tokens.push_back(had[i].tokens);
  }
  journal_->Count(client == nullptr ? "resumed" : "resumed in a session");
  return had;
}

void Actions::Score() {
  Asked* const asked = requests_->Start("score");
  ScoreSpec spec;
  spec.tenant = asked->tenant = draws_.Tenant();
  spec.priority = asked->priority = draws_.AnyPriority();
  spec.tokens = draws_.Tokens(15);
  if (choices_->OneIn(2)) spec.window = choices_->Between(1, 8);
  spec.want_logprobs = choices_->OneIn(2);
  const int64_t num_scored =
      static_cast<int64_t>(spec.tokens.size()) - (engine_->world().bos() == 1 ? 0 : 1);
  if (num_scored > 0 && choices_->OneIn(3)) {
    spec.output_positions.push_back(choices_->Below(static_cast<int>(num_scored)));
  }
  asked->refusal = Spoil(choices_, &spec);
  spec.deadline = asked->deadline = draws_.Deadline();
  asked->tokens = static_cast<int64_t>(spec.tokens.size());
  Accepted(asked, engine_->get()->Score(spec, [=, this](const auto& seen) {
    judges_.results->Score(asked, spec, seen);
  }));
}

void Actions::Append() {
  Asked* const asked = requests_->Start("append");
  AppendSpec spec;
  spec.session = draws_.Session(asked);
  draws_.Hash(*asked, &spec.session);
  spec.priority = asked->priority = draws_.AnyPriority();
  spec.tokens = draws_.Prompt();
  spec.cache = draws_.Cache(20);
  if (asked->client != nullptr && choices_->OneIn(3)) AskAgain(*asked->client, &spec);
  asked->goes_on = true;
  spec.score = choices_->OneIn(2);
  spec.want_logprobs = spec.score && choices_->OneIn(2);
  if (spec.score && !spec.tokens.empty() && choices_->OneIn(3)) {
    spec.output_positions.push_back(choices_->Below(static_cast<int>(spec.tokens.size())));
  }
  asked->refusal = Spoil(choices_, &spec);
  spec.deadline = asked->deadline = draws_.Deadline();
  asked->tokens = static_cast<int64_t>(spec.tokens.size());
  absl::StrAppend(&asked->what, " ", spec.tokens.size(), " tokens", Of(spec.session));
  Accepted(asked, engine_->get()->Append(spec, [=, this](const auto& seen) {
    judges_.results->Append(asked, spec, seen);
  }));
}

void Actions::Open() {
  Asked* const asked = requests_->Start("open");
  OpenSpec spec;
  spec.tenant = asked->tenant = draws_.Tenant();
  spec.seed = draws_.Seed();
  if (choices_->OneIn(2)) spec.idle_timeout = absl::Seconds(choices_->Between(1, 100));
  if (choices_->OneIn(40)) {
    spec.idle_timeout = absl::Seconds(DrawExtreme(choices_, 0));
    asked->refusal = "IDLE_TIMEOUT_OUT_OF_RANGE";
  }
  spec.deadline = asked->deadline = draws_.Deadline();
  Accepted(asked, OpenSession(engine_->get(), spec, [=, this](const auto& seen) {
             judges_.sessions->Open(asked, spec, seen);
           }));
}

void Actions::Fork() {
  Asked* const asked = requests_->Start("fork");
  ForkSpec spec;
  spec.session = draws_.Session(asked);
  spec.session.mark.clear();
  spec.count = choices_->Between(1, 3);
  if (choices_->OneIn(30)) {
    spec.count = DrawExtreme32(choices_);
    asked->refusal = "FORK_COUNT_OUT_OF_RANGE";
  }
  spec.seed = draws_.Seed(1);
  spec.deadline = asked->deadline = draws_.Deadline();
  asked->opens = spec.count;
  absl::StrAppend(&asked->what, " x", spec.count, Of(spec.session));
  Accepted(asked, ForkSession(engine_->get(), spec, [=, this](const auto& seen) {
             judges_.sessions->Fork(asked, spec, seen);
           }));
}

void Actions::Rewind() {
  Asked* const asked = requests_->Start("rewind");
  SessionRef to = draws_.Session(asked);
  if (choices_->OneIn(2) || to.position) {
    to.mark.clear();
    if (!to.position) to.position = 0;
  } else if (to.mark.empty()) {
    to.mark = draws_.Mark();
  }
  asked->deadline = draws_.Deadline();
  absl::StrAppend(&asked->what, Of(to));
  Accepted(asked, RewindSession(engine_->get(), to, asked->deadline, [=, this](const auto& seen) {
             judges_.sessions->Rewind(asked, to, seen);
           }));
}

void Actions::Close() {
  Asked* const asked = requests_->Start("close");
  const SessionRef ref = draws_.Session(asked);
  Close(asked, ref);
}

void Actions::CloseAll() {
  for (Client& client : *clients_) {
    if (client.gone) continue;
    Asked* const asked = requests_->Start(absl::StrCat("close ", client.number));
    asked->client = &client;
    asked->tenant = client.tenant;
    SessionRef ref;
    ref.id = client.id;
    ref.tenant = client.tenant;
    Close(asked, ref);
  }
}

void Actions::Close(Asked* asked, const SessionRef& ref) {
  asked->closes = true;
  const absl::StatusOr<RequestId> id = CloseSession(
      engine_->get(), ref,
      [this, asked](const absl::Status& status) { judges_.sessions->Close(asked, status); });
  if (id.ok() && asked->client != nullptr && !asked->foreign) asked->client->closing = true;
  Accepted(asked, id);
}

void Actions::List() {
  Asked* const asked = requests_->Start("list");
  asked->tenant = draws_.Tenant();
  ListSpec spec{asked->tenant};
  const bool beyond = choices_->OneIn(20);  // of the last page
  if (beyond) spec.after = static_cast<uint64_t>(DrawExtreme(choices_, 0));
  Accepted(asked, ListSessions(engine_->get(), spec, [=, this](const auto& seen) {
             judges_.sessions->List(asked, beyond, seen);
           }));
}

void Actions::TakeSnapshot() {
  Asked* const asked = requests_->Start("snapshot");
  SessionRef ref = draws_.Session(asked);
  asked->goes_on = true;
  ref.mark.clear();
  absl::StrAppend(&asked->what, Of(ref));
  asked->deadline = draws_.Deadline();
  Accepted(asked,
           SnapshotSession(engine_->get(), ref, asked->deadline, [=, this](const auto& seen) {
             judges_.sessions->TakeSnapshot(asked, ref, seen);
           }));
}

void Actions::Restore() {
  const std::vector<Kept>& snapshots = judges_.sessions->snapshots();
  if (snapshots.empty()) return;
  const Kept& kept =
      snapshots[static_cast<size_t>(choices_->Below(static_cast<int>(snapshots.size())))];
  std::string bytes = kept.bytes;
  const bool damage = choices_->OneIn(3);
  if (damage) {
    const size_t at = static_cast<size_t>(choices_->Below(static_cast<int>(bytes.size())));
    if (choices_->OneIn(2)) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << choices_->Below(8)));
    }
  }
  absl::StatusOr<Snapshot> read = DecodeSnapshot(bytes, "");
  if (damage || !read.ok()) {
    journal_->Count(read.ok() ? "" : ReasonOf(read.status()));
    if (!damage) journal_->Broken("a snapshot cannot be read: ", read.status());
    if (!read.ok()) return judges_.status->Message(read.status());
    // One bit of the version makes it one of another kind of model (CheckSnapshot).
    if (read->grows == DecodeSnapshot(kept.bytes, "")->grows) {
      journal_->Broken("I5: a damaged snapshot is taken for a good one");
    }
    return;
  }
  Asked* const asked = requests_->Start("restore");
  RestoreSpec spec;
  spec.tenant = asked->tenant = read->tenant;
  for (size_t i = 0; i < read->tokens.size(); ++i)
    spec.history.Append(read->tokens[i], read->generated[i]);
  spec.seed = read->seed;
  spec.marks = read->marks;
  spec.fed = read->fed;
  spec.state = std::move(read->state);
  spec.deadline = asked->deadline = draws_.Deadline();
  asked->restores = kept.state;
  Accepted(asked,
           RestoreSession(engine_->get(), std::move(spec),
                          [this, asked, tenant = kept.tenant, seed = kept.seed](const auto& seen) {
                            judges_.sessions->Restore(asked, tenant, seed, seen);
                          }));
}

void Actions::CancelSomething() {
  if (requests_->empty()) return;
  RequestId id = requests_->Choose(choices_)->id;
  if (choices_->OneIn(8))
    id = static_cast<RequestId>(choices_->Below(requests_->last_number() + 2));  // anybody's
  for (Asked& asked : *requests_) {
    if (asked.id != id) continue;
    journal_->Note("cancel ", asked.what);
    if (!asked.cancelled) asked.cancelled = clock_.turn();
  }
  engine_->get()->Cancel(id);
}

void Actions::Read() {
  if (requests_->empty()) return;
  Asked* const asked = requests_->Choose(choices_);
  if (!asked->asleep) ReadOf(asked);
}

void Actions::ReadAll() {
  for (Asked& asked : *requests_) ReadOf(&asked);
}

}  // namespace rivulet::simulated
