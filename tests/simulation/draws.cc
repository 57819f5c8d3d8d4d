// SPDX-License-Identifier: Apache-2.0
// The parts of what simulated clients ask for.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/extremes.h"
#include "tests/simulation/simulation.h"

namespace rivulet {
namespace {

constexpr const char* kTenantNames[] = {"", "a", "b"};
static_assert(std::size(kTenantNames) == World::kTenants);
constexpr const char* kMarks[] = {"m", "n", "o", "p"};

}  // namespace

std::string Simulation::DrawTenant() { return kTenantNames[choices_.Below(World::kTenants)]; }

std::string Simulation::DrawMark() { return kMarks[choices_.Below(4)]; }

Priority Simulation::DrawPriority() {
  return static_cast<Priority>(choices_.Below(kNumPriorities));
}

std::vector<int32_t> Simulation::DrawTokens(int most) {
  std::vector<int32_t> tokens(static_cast<size_t>(choices_.Below(most + 1)));
  for (int32_t& token : tokens) token = choices_.Below(letters_);
  return tokens;
}

// One of several begins as others do.
std::vector<int32_t> Simulation::DrawPrompt() {
  if (choices_.OneIn(2)) return DrawTokens(choices_.OneIn(8) ? 30 : 5);
  const std::vector<int32_t>& common = common_[static_cast<size_t>(choices_.Below(2))];
  const int size = static_cast<int>(common.size());
  const int shared = choices_.OneIn(2) ? size : choices_.Below(size + 1);
  std::vector<int32_t> prompt = DrawTokens(2);
  prompt.insert(prompt.begin(), common.begin(), common.begin() + shared);
  return prompt;
}

PromptCacheSpec Simulation::DrawCache(int64_t longest) {
  PromptCacheSpec cache;
  cache.enabled = choices_.OneIn(2);
  if (!cache.enabled) return cache;
  if (choices_.OneIn(3)) cache.salt.assign(1, 's');
  if (longest == 0 || !choices_.OneIn(3)) return cache;
  for (int n = choices_.Between(1, 3); n > 0; --n) {
    cache.positions.push_back(choices_.Between(1, static_cast<int>(longest)));
  }
  return cache;
}

absl::Time Simulation::DrawDeadline() {
  if (choices_.OneIn(60)) return absl::FromUnixSeconds(DrawExtreme(&choices_, 0));
  if (!choices_.OneIn(6)) return absl::InfiniteFuture();
  return now_ + absl::Milliseconds(choices_.Below(4000));
}

// Mostly an open session, sometimes one that is gone, is another tenant's, or never was.
SessionRef Simulation::DrawSession(Asked* asked) {
  SessionRef ref;
  if (clients_.empty() || choices_.OneIn(40)) {
    ref.id = {1, static_cast<uint64_t>(choices_.Below(1000))};
    asked->foreign = true;
    asked->tenant = ref.tenant = DrawTenant();
    return ref;
  }
  size_t index = 0;
  for (int tries = 0; tries == 0 || (tries < 5 && clients_[index].gone); ++tries) {
    index = static_cast<size_t>(choices_.Below(static_cast<int>(clients_.size())));
  }
  Client& client = clients_[index];
  asked->client = &client;
  ref.id = client.id;
  ref.tenant = client.tenant;
  if (choices_.OneIn(20)) {
    ref.tenant = std::string(kTenantNames[client.tenant == "a" ? 2 : 1]);
    asked->foreign = true;
  }
  asked->tenant = ref.tenant;
  absl::StrAppend(&asked->what, " on ", client.number, asked->foreign ? " as another tenant" : "");
  if (choices_.OneIn(3)) {
    const int size = static_cast<int>(client.maybe[0].size());
    ref.position =
        choices_.OneIn(2) ? std::max(0, size - choices_.Below(6)) : choices_.Between(-1, size + 1);
    if (choices_.OneIn(8)) ref.position = DrawExtreme(&choices_, choices_.Below(size + 2));
  }
  if (choices_.OneIn(5)) ref.mark = DrawMark();
  return ref;
}

// What the client believes that the session, or its tokens before the position, are: mostly that of
// one state in which it may be.
void Simulation::DrawHash(const Asked& asked, SessionRef* ref) {
  if (asked.client == nullptr || !choices_.OneIn(5)) return;
  SessionState state = asked.client->maybe[0];
  ref->repeated = choices_.OneIn(2);
  if (ref->position && choices_.OneIn(2)) {
    state.Cut(std::clamp<int64_t>(*ref->position, 0, state.size()));
  }
  ref->hash = choices_.OneIn(8) ? 7 : state.hash();
}

GenerateSpec Simulation::DrawGenerate() {
  GenerateSpec spec;
  spec.prompt = DrawPrompt();
  spec.max_tokens = choices_.OneIn(10) ? choices_.Below(40) : choices_.Between(1, 10);
  spec.sampling.seed =
      static_cast<uint64_t>(choices_.OneIn(8) ? DrawExtreme(&choices_, 0) : choices_.Below(100));
  if (choices_.OneIn(3)) spec.sampling.repetition_penalty = 2;  // so that counts matter
  spec.ignore_eos = choices_.OneIn(2);
  if (choices_.OneIn(4)) spec.stop_ids = {choices_.Below(letters_)};
  if (world_.tokenizer && choices_.OneIn(2)) {
    for (int n = choices_.Between(1, 3); n > 0; --n) {
      std::string stop(1, static_cast<char>('a' + choices_.Below(letters_)));
      if (choices_.OneIn(2)) stop += static_cast<char>('a' + choices_.Below(letters_));
      spec.stop_strings.push_back(stop);
    }
    spec.include_stop_string = choices_.OneIn(2);
  }
  spec.want_logprobs = choices_.OneIn(4);
  spec.priority = DrawPriority();
  spec.deadline = DrawDeadline();
  return spec;
}

}  // namespace rivulet
