// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/requests.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"

namespace rivulet::simulated {

Asked* Requests::Start(const std::string& what) {
  Asked& asked = asked_.emplace_back();
  asked.number = ++last_number_;
  asked.what = absl::StrCat("#", asked.number, " ", what);
  asked.turn = clock_.turn();
  return &asked;
}

void Requests::Accept(Asked* asked, RequestId id, int64_t runs) {
  asked->id = id;
  asked->arrival = clock_.now();
  asked->first = true;
  asked->runs_before = runs;
  std::set<std::string> tenants;
  for (Asked& other : asked_) {
    tenants.insert(other.tenant);
    if (&other == asked || other.tenant != asked->tenant) continue;
    asked->first = false;
    if (asked->priority < other.priority) other.first = false;
  }
  asked->tenants = static_cast<int>(tenants.size());
}

void Requests::Remove(const Asked* asked) {
  asked_.remove_if([asked](const Asked& other) { return &other == asked; });
}

Asked* Requests::Choose(Choices* choices) {
  return &*std::next(asked_.begin(), choices->Below(static_cast<int>(asked_.size())));
}

int Requests::places() const {
  int places = 0;
  for (const Asked& asked : asked_) places += asked.places;
  return places;
}

int64_t Requests::tokens() const {
  int64_t tokens = 0;
  for (const Asked& asked : asked_) tokens += asked.tokens;
  return tokens;
}

bool Requests::TenantTookTooMuch(const Asked& last, const World& world) const {
  const EngineOptions& options = world.options;
  int64_t own = 0, others = 0, own_tokens = 0, others_tokens = 0;
  int requests = 0, with_tokens = 0;
  for (const Asked& asked : asked_) {
    const bool its_own = asked.tenant == last.tenant;
    (its_own ? own : others) += asked.places;
    (its_own ? own_tokens : others_tokens) += asked.tokens;
    requests += its_own ? 1 : 0;
    with_tokens += its_own && asked.tokens > 0 ? 1 : 0;
  }
  const int64_t slots = world.fake.limits.num_slots;
  if (options.max_tenant_queue > 0 && own > slots + options.max_tenant_queue) return true;
  if (requests <= 1) return false;
  const auto too_much = [](int64_t mine, int64_t left) { return mine > 7 * left + 7; };
  const int64_t beyond = own - std::max<int64_t>(0, slots - others);
  return (beyond > 0 && too_much(beyond, slots + options.max_queue - own - others)) ||
         (last.tokens > 0 && with_tokens > 1 &&
          too_much(own_tokens, options.max_queue_tokens - own_tokens - others_tokens));
}

}  // namespace rivulet::simulated
