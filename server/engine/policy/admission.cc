// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/admission.h"

#include <algorithm>

namespace rivulet {

RequestId Admission::Line::oldest() const {
  RequestId first = ~RequestId{0};
  for (const auto& ids : waiting) {
    if (!ids.empty()) first = std::min(first, *ids.begin());
  }
  return first;
}

// The one whose turn it is.
RequestId Admission::Line::next() const {
  if (turns_since_oldest >= kOldestEvery - 1) return oldest();
  return *std::find_if(waiting.begin(), waiting.end(), [](const auto& ids) {
            return !ids.empty();
          })->begin();
}

uint64_t Admission::Add(RequestId id, const std::string& tenant, Priority priority, int slots,
                        const KeyShare& key) {
  const auto [place, is_new] = tenants_.try_emplace(tenant);
  if (is_new) {
    place->second.key = ++last_key_;
    place->second.turn = ++last_turn_;
  }
  const Keys::iterator of_key = keys_.try_emplace(key.key).first;
  of_key->second.most = key.most;
  ++of_key->second.requests;
  Wait(id, {place, of_key, priority, slots, /*preempted=*/false});
  return place->second.key;
}

void Admission::Wait(RequestId id, const Waiting& waiting) {
  Tenant& tenant = waiting.tenant->second;
  turns_.emplace(TurnOf(tenant), waiting.tenant);
  const auto priority = static_cast<size_t>(waiting.priority);
  tenant.lines[&waiting.key->second].waiting[priority].insert(id);
  waiting_.emplace(id, waiting);
  needed_[priority] += waiting.slots;
}

// A request of the key neither waits nor holds slots any more.
void Admission::Leave(Keys::iterator key) {
  if (--key->second.requests == 0) keys_.erase(key);
}

void Admission::Remove(RequestId id) {
  const auto found = waiting_.find(id);
  const Waiting waiting = found->second;
  waiting_.erase(found);
  Tenant& tenant = waiting.tenant->second;
  const auto line = tenant.lines.find(&waiting.key->second);
  auto& ids = line->second.waiting;
  ids[static_cast<size_t>(waiting.priority)].erase(id);
  if (std::all_of(ids.begin(), ids.end(), [](const auto& set) { return set.empty(); })) {
    tenant.lines.erase(line);
  }
  Leave(waiting.key);
  needed_[static_cast<size_t>(waiting.priority)] -= waiting.slots;
  if (waiting.preempted) {
    tenant.away.erase({waiting.priority, id});
    tenant.preempted -= waiting.slots;
    preempted_ -= waiting.slots;
  }
  if (next_ == id) next_.reset();
  if (tenant.waits()) return;
  turns_.erase(TurnOf(tenant));
  tenant.turns_since_oldest = 0;
  Forget(waiting.tenant);
}

std::optional<RequestId> Admission::Next(int free_slots, uint64_t run) {
  // Without a free slot nothing is chosen: somebody more urgent may come before there is one.
  if (waiting_.empty() || free_slots == 0) return std::nullopt;
  next_ = Choose();
  if (!next_) return std::nullopt;
  const RequestId id = *next_;
  const Waiting waiting = waiting_.at(id);
  if (waiting.slots > free_slots) return std::nullopt;
  Tenant& tenant = waiting.tenant->second;
  Key& key = waiting.key->second;
  const bool oldest = tenant.lines.at(&key).oldest() == id;
  const bool oldest_next = OldestNext(tenant) >= id;
  const uint64_t due = run + static_cast<uint64_t>(limits_.quantum);
  holding_.emplace(id, Holding{waiting.tenant, waiting.key, waiting.priority, waiting.slots, due});
  tenant.due.emplace(due, id);
  // First: who holds slots is not forgotten.
  SetHeld(waiting.tenant, tenant.held + waiting.slots, ++last_turn_);
  key.held += waiting.slots;
  ++key.requests;
  Remove(id);
  const auto line = tenant.lines.find(&key);
  if (line != tenant.lines.end()) {
    int& turns = line->second.turns_since_oldest;
    turns = oldest ? 0 : turns + 1;
  }
  if (tenant.waits()) tenant.turns_since_oldest = oldest_next ? 0 : tenant.turns_since_oldest + 1;
  return id;
}

Admission::Claim Admission::ClaimOf(const Waiting& waiting) const {
  const int held = waiting.tenant->second.held;
  if (held == 0) return Claim::kOfFirst;
  const auto tenants = static_cast<int64_t>(tenants_.size());
  return (held + waiting.slots) * tenants <= limits_.slots ? Claim::kOfShare : Claim::kNone;
}

// Whether its key may hold its slots, too.
bool Admission::FitsKey(const Waiting& waiting) {
  const Key& key = waiting.key->second;
  return key.held == 0 || int64_t{key.held} + waiting.slots <= key.most;
}

bool Admission::limits_keys() const {
  return std::any_of(keys_.begin(), keys_.end(),
                     [](const auto& key) { return key.second.most < KeyShare().most; });
}

// Whether it may get slots, if enough are free.
bool Admission::MayGo(const Waiting& waiting) const {
  const Tenant& tenant = waiting.tenant->second;
  if (tenant.held + waiting.slots > limits_.max_tenant_slots) return false;
  if (waiting.preempted || preempted_ == 0) return true;
  const int begun = tenant.held + tenant.preempted;
  const int64_t left = limits_.max_begun - held_ - preempted_ - waiting.slots;
  if (begun == 0) return left >= 0;
  return begun + waiting.slots <= std::min<int64_t>(limits_.slots, left);
}

// Of those whose turn it is in the lines of the tenant and who fit their keys, the one that came
// first.
std::optional<RequestId> Admission::OldestNext(const Tenant& tenant) const {
  std::optional<RequestId> oldest;
  for (const auto& [key, line] : tenant.lines) {
    const RequestId id = line.next();
    if (FitsKey(waiting_.at(id)) && (!oldest || id < *oldest)) oldest = id;
  }
  return oldest;
}

// The tenant's request that is next.
std::optional<RequestId> Admission::CandidateOf(const Tenant& tenant) const {
  const bool by_age = tenant.turns_since_oldest >= kOldestEvery - 1;
  std::optional<std::pair<Priority, RequestId>> first;
  for (const auto& [key, line] : tenant.lines) {
    const RequestId id = line.next();
    const Waiting& waiting = waiting_.at(id);
    if (!FitsKey(waiting)) continue;
    const std::pair rank(by_age ? Priority::kHigh : waiting.priority, id);
    if (!first || rank < *first) first = rank;
  }
  if (first && MayGo(waiting_.at(first->second))) return first->second;
  for (const auto& [priority, away] : tenant.away) {
    const Waiting& waiting = waiting_.at(away);
    if (FitsKey(waiting) && MayGo(waiting)) return away;
  }
  return std::nullopt;
}

// The request that is next of all: the one that was, unless another has a larger claim.
std::optional<RequestId> Admission::Choose() const {
  // Its key may have got slots since, for a request with a larger claim.
  std::optional<RequestId> best = next_ && FitsKey(waiting_.at(*next_)) ? next_ : std::nullopt;
  for (const auto& [turn, tenant] : turns_) {
    if (best && ClaimOf(waiting_.at(*best)) == Claim::kOfFirst) break;
    const std::optional<RequestId> id = CandidateOf(tenant->second);
    if (!id) continue;
    if (!best || ClaimOf(waiting_.at(*id)) > ClaimOf(waiting_.at(*best))) best = id;
  }
  return best;
}

std::vector<RequestId> Admission::Victims(int free_slots, uint64_t run) {
  std::vector<RequestId> victims;
  if (waiting_.empty() || tenants_.size() == 1) return victims;
  const std::optional<RequestId> id = Choose();
  if (!id) return victims;
  const Waiting& waiting = waiting_.at(*id);
  const Claim claim = ClaimOf(waiting);
  const int more = waiting.preempted ? 0 : waiting.slots;
  if (claim == Claim::kNone || held_ + preempted_ + more > limits_.max_begun) return victims;
  struct Other {
    int held;  // once the victims so far have gone
    std::set<std::pair<uint64_t, RequestId>>::const_iterator next, end;
  };
  std::vector<Other> others;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.held == 0 || &tenant == &waiting.tenant->second) continue;
    others.push_back({tenant.held, tenant.due.begin(), tenant.due.upper_bound({run, ~0ull})});
  }
  const auto tenants = static_cast<int64_t>(tenants_.size());
  const auto slots_of = [this](const Other& other) {
    return holding_.at(other.next->second).slots;
  };
  const auto stays_at_share = [&](const Other& other) {
    return (other.held - slots_of(other)) * tenants >= limits_.slots;
  };
  int missing = waiting.slots - free_slots;
  while (missing > 0) {
    Other* most = nullptr;
    for (Other& other : others) {
      while (claim == Claim::kOfShare && other.next != other.end && !stays_at_share(other)) {
        ++other.next;
      }
      if (other.next != other.end && (most == nullptr || other.held > most->held)) most = &other;
    }
    if (most == nullptr) return {};  // not enough are due
    victims.push_back(most->next->second);
    missing -= slots_of(*most);
    most->held -= slots_of(*most);
    ++most->next;
  }
  // A large one may have made a small one before it needless.
  std::erase_if(victims, [&](RequestId victim) {
    const int slots = holding_.at(victim).slots;
    if (missing + slots > 0) return false;
    missing += slots;
    return true;
  });
  next_ = id;
  return victims;
}

void Admission::Preempt(RequestId id) {
  const Holding holding = holding_.at(id);
  Tenant& tenant = holding.tenant->second;
  holding_.erase(id);
  tenant.due.erase({holding.due, id});
  holding.key->second.held -= holding.slots;
  Wait(id, {holding.tenant, holding.key, holding.priority, holding.slots, /*preempted=*/true});
  tenant.away.emplace(holding.priority, id);
  tenant.preempted += holding.slots;
  preempted_ += holding.slots;
  SetHeld(holding.tenant, tenant.held - holding.slots, tenant.turn);
}

void Admission::EndQuantum(RequestId id) {
  Holding& holding = holding_.at(id);
  auto& due = holding.tenant->second.due;
  due.erase({holding.due, id});
  holding.due = 0;
  due.emplace(0, id);
}

void Admission::GiveBack(RequestId id, int slots) {
  const auto found = holding_.find(id);
  const Tenants::iterator tenant = found->second.tenant;
  const Keys::iterator key = found->second.key;
  found->second.slots -= slots;
  key->second.held -= slots;
  if (found->second.slots == 0) {
    tenant->second.due.erase({found->second.due, id});
    holding_.erase(found);
    Leave(key);
  }
  SetHeld(tenant, tenant->second.held - slots, tenant->second.turn);
  Forget(tenant);
}

void Admission::SetHeld(Tenants::iterator tenant, int held, uint64_t turn) {
  turns_.erase(TurnOf(tenant->second));
  held_ += held - tenant->second.held;
  tenant->second.held = held;
  tenant->second.turn = turn;
  if (tenant->second.waits()) turns_.emplace(TurnOf(tenant->second), tenant);
}

void Admission::Forget(Tenants::iterator tenant) {
  if (tenant->second.held == 0 && !tenant->second.waits()) tenants_.erase(tenant);
}

}  // namespace rivulet
