// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/draws.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/simulation/extremes.h"

namespace rivulet::simulated {
namespace {

constexpr const char* kTenantNames[] = {"", "a", "b"};
static_assert(std::size(kTenantNames) == World::kTenants);
constexpr const char* kMarks[] = {"m", "n", "o", "p"};

}  // namespace

std::string Draws::Tenant() { return kTenantNames[choices_->Below(World::kTenants)]; }

std::string Draws::Mark() { return kMarks[choices_->Below(4)]; }

Priority Draws::AnyPriority() { return static_cast<Priority>(choices_->Below(kNumPriorities)); }

uint64_t Draws::Seed(int64_t near) {
  return static_cast<uint64_t>(choices_->OneIn(8) ? DrawExtreme(choices_, near)
                                                  : choices_->Below(100));
}

std::vector<int32_t> Draws::Tokens(int most) {
  std::vector<int32_t> tokens(static_cast<size_t>(choices_->Below(most + 1)));
  for (int32_t& token : tokens) token = choices_->Below(world_.letters);
  return tokens;
}

std::vector<int32_t> Draws::Prompt() {
  if (choices_->OneIn(2)) return Tokens(choices_->OneIn(8) ? 30 : 5);
  const std::vector<int32_t>& common = world_.common[static_cast<size_t>(choices_->Below(2))];
  const int size = static_cast<int>(common.size());
  const int shared = choices_->OneIn(2) ? size : choices_->Below(size + 1);
  std::vector<int32_t> prompt = Tokens(2);
  prompt.insert(prompt.begin(), common.begin(), common.begin() + shared);
  return prompt;
}

PromptCacheSpec Draws::Cache(int64_t longest) {
  PromptCacheSpec cache;
  cache.enabled = choices_->OneIn(2);
  if (!cache.enabled) return cache;
  if (choices_->OneIn(3)) cache.salt.assign(1, 's');
  if (longest == 0 || !choices_->OneIn(3)) return cache;
  for (int n = choices_->Between(1, 3); n > 0; --n) {
    cache.positions.push_back(choices_->Between(1, static_cast<int>(longest)));
  }
  return cache;
}

absl::Time Draws::Deadline() {
  if (choices_->OneIn(60)) return absl::FromUnixSeconds(DrawExtreme(choices_, 0));
  if (!choices_->OneIn(6)) return absl::InfiniteFuture();
  return clock_.now() + absl::Milliseconds(choices_->Below(4000));
}

SessionRef Draws::Session(Asked* asked) {
  SessionRef ref;
  if (clients_->empty() || choices_->OneIn(40)) {
    ref.id = {1, static_cast<uint64_t>(choices_->Below(1000))};
    asked->foreign = true;
    asked->tenant = ref.tenant = Tenant();
    return ref;
  }
  Client& client = *clients_->Choose(choices_);
  asked->client = &client;
  ref.id = client.id;
  ref.tenant = client.tenant;
  if (choices_->OneIn(20)) {
    ref.tenant = std::string(kTenantNames[client.tenant == "a" ? 2 : 1]);
    asked->foreign = true;
  }
  asked->tenant = ref.tenant;
  absl::StrAppend(&asked->what, " on ", client.number, asked->foreign ? " as another tenant" : "");
  if (choices_->OneIn(3)) {
    const int size = static_cast<int>(client.maybe[0].size());
    ref.position = choices_->OneIn(2) ? std::max(0, size - choices_->Below(6))
                                      : choices_->Between(-1, size + 1);
    if (choices_->OneIn(8)) ref.position = DrawExtreme(choices_, choices_->Below(size + 2));
  }
  if (choices_->OneIn(5)) ref.mark = Mark();
  return ref;
}

void Draws::Hash(const Asked& asked, SessionRef* ref) {
  if (asked.client == nullptr || !choices_->OneIn(5)) return;
  SessionState state = asked.client->maybe[0];
  ref->repeated = choices_->OneIn(2) && ref->position.has_value();
  if (ref->position && choices_->OneIn(2)) {
    state.Cut(std::clamp<int64_t>(*ref->position, 0, state.size()));
  }
  ref->hash = choices_->OneIn(8) ? 7 : state.hash();
}

Constraint Draws::Choice() {
  Constraint constraint;
  constraint.kind = Constraint::Kind::kChoices;
  for (int n = choices_->Between(1, 3); n > 0; --n) {
    std::string& text = constraint.choices.emplace_back();
    const bool alike = constraint.choices.size() > 1 && choices_->OneIn(2);
    if (alike) text = constraint.choices[0].substr(0, 3);
    for (int k = choices_->Between(1, 8); k > 0; --k)
      text += static_cast<char>('a' + choices_->Below(world_.letters));
  }
  return constraint;
}

GenerateSpec Draws::Generate() {
  GenerateSpec spec;
  spec.prompt = Prompt();
  spec.max_tokens = choices_->OneIn(10) ? choices_->Below(40) : choices_->Between(1, 10);
  spec.sampling.seed = Seed();
  if (choices_->OneIn(3)) spec.sampling.repetition_penalty = 2;  // so that counts matter
  spec.ignore_eos = choices_->OneIn(2);
  if (choices_->OneIn(4)) spec.stop_ids = {choices_->Below(world_.letters)};
  if (world_.tokenizer && choices_->OneIn(2)) {
    for (int n = choices_->Between(1, 3); n > 0; --n) {
      std::string stop(1, static_cast<char>('a' + choices_->Below(world_.letters)));
      if (choices_->OneIn(2)) stop += static_cast<char>('a' + choices_->Below(world_.letters));
      spec.stop_strings.push_back(stop);
    }
    spec.include_stop_string = choices_->OneIn(2);
  }
  // A draw that is not finite ends the reply, and a forced token needs no draw.
  if (world_.tokenizer && world_.fake.non_finite_draw_position < 0 && choices_->OneIn(2)) {
    spec.constraint = Choice();
    spec.ignore_eos = false;
  }
  if (!spec.constraint && spec.max_tokens > 0 && choices_->OneIn(3)) {
    spec.min_tokens = choices_->Between(1, static_cast<int>(spec.max_tokens));
  }
  if (world_.fake.limits.drafts.most > 0) {
    const int drafts = choices_->Between(-3, 6);
    if (drafts >= 0) spec.speculation.drafts = drafts;
  }
  spec.want_logprobs = choices_->OneIn(4);
  spec.priority = AnyPriority();
  spec.deadline = Deadline();
  return spec;
}

}  // namespace rivulet::simulated
