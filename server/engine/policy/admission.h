// SPDX-License-Identifier: Apache-2.0
// Admission: who waits for slots, who gets the next ones, and who must give some up for that. No
// clock, no threads, no backend: what it answers follows from the calls alone.
//
// Slots are shared evenly between tenants: the next ones go to the tenant that holds the fewest,
// and among equals to the one whose last turn was longest ago (a new tenant counts as having just
// had its turn). A tenant that is alone gets all slots.
//
// Preemption. A request does not wait for others to end if its tenant holds nothing, or would hold
// no more than its share (slots / tenants that wait or hold some) with it. Then requests of the
// tenants that hold most give up their slots, those that have had them longest first, and wait
// again at their old places. A request keeps its slots for at least a quantum of runs, and a tenant
// that holds some already takes none from a tenant that would fall below its share. So a tenant's
// first request waits for at most
//     quantum * tenants    runs
// where the tenants are those that wait or hold slots when it arrives: each of the others that
// holds nothing has one turn before it, and two turns are at most a quantum apart.
//
// The states of preempted requests take memory, so at most max_begun samples hold slots or are
// preempted. While some are preempted, a tenant begins more only if it has begun no more than are
// left of these, and never more than all slots; a tenant that has begun none begins if there is
// room.
//
// Between a tenant's own requests priority decides, and within one priority the order of arrival.
// Of every kOldestEvery turns that a tenant has while its oldest request waits, one is that
// request's, whatever its priority: a request behind m older ones waits for at most
// kOldestEvery * (m + 1) turns.
//
// A request that needs n slots, once it is next, waits until n are free. Only a request that may
// preempt others overtakes it, and only where it may not. So a large request cannot starve.
//
// Requests of one API key may together hold a limited number of slots. One that waits for slots of
// its key delays only requests of that key: within a tenant each key has a queue of its own, and
// the requests without a key have one. What is said of a tenant's own requests holds within a
// queue; of every kOldestEvery turns of the tenant, one goes to the queue whose request came first.
// A request that needs more than its key's limit, because that was lowered, gets its slots when the
// key holds none.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/base/key_account.h"
#include "server/engine/request.h"

namespace rivulet {

struct AdmissionLimits {
  int slots = std::numeric_limits<int>::max();
  int max_tenant_slots = std::numeric_limits<int>::max();  // that one tenant holds at once
  int64_t max_begun = 0;  // samples that hold slots or were preempted; 0: nothing is preempted
  int quantum = 1;        // runs
};

class Admission {
 public:
  static constexpr int kOldestEvery = 8;

  explicit Admission(const AdmissionLimits& limits = {}) : limits_(limits) {}

  // `id` begins to wait. Ids are in order of arrival, so a request whose slots were taken from it
  // gets its old place. `key` is that of the request; its limit holds for all requests of the key
  // from now on. Returns the number of the tenant, which stays the same until the tenant neither
  // waits nor holds slots. REQUIRES: `id` does not wait, 1 <= slots <= max_tenant_slots.
  uint64_t Add(RequestId id, const std::string& tenant, Priority priority, int slots,
               const KeyShare& key = {});
  // `id` stops waiting. REQUIRES: it waits.
  void Remove(RequestId id);
  // The request that gets its slots now and holds them from then on; nullopt where none waits, or
  // the next one needs more than are free. `run`: the number of runs so far.
  std::optional<RequestId> Next(int free_slots, uint64_t run);
  // `id` gives back `slots` of the slots that it holds. REQUIRES: it holds them.
  void GiveBack(RequestId id, int slots);

  // Requests that must give up all their slots now so that the next one gets enough; empty where
  // that one may not preempt, or not yet. The caller calls Preempt for each before it calls Next
  // again.
  std::vector<RequestId> Victims(int free_slots, uint64_t run);
  // `id` has given up its slots and waits for as many again.
  void Preempt(RequestId id);
  // `id`, which holds slots, cannot use them: it may be preempted at any time.
  void EndQuantum(RequestId id);

  bool empty() const { return waiting_.empty(); }
  // The waiting request that arrived first. REQUIRES: !empty().
  RequestId oldest() const { return waiting_.begin()->first; }
  // Slots that the waiting requests of one priority need.
  int slots_needed(Priority priority) const { return needed_[static_cast<size_t>(priority)]; }
  // Tenants that wait or hold slots.
  int tenants() const { return static_cast<int>(tenants_.size()); }
  // Preempted samples, which wait.
  int preempted() const { return preempted_; }
  // Whether some requests may wait only because of the limit of their key.
  bool limits_keys() const { return limited_keys_ > 0; }
  // How many tenants the choices have looked at since the start, which is what they cost.
  int64_t looked_at() const { return looked_at_; }

 private:
  struct Key;
  using Ranked = std::pair<Priority, RequestId>;
  // Waiting requests of one tenant and key; at least one.
  struct KeyQueue {
    std::array<std::set<RequestId>, kNumPriorities> waiting;
    int turns_since_oldest = 0;    // its turns since its oldest request had one
    std::optional<Ranked> ranked;  // its next request where that fits the key: in Tenant::next
    bool empty() const;
    RequestId oldest() const;  // REQUIRES: !empty()
    RequestId next() const;    // likewise
  };
  // What decides whether a tenant's next request may go, and with what claim. Tenants with the same
  // are in turn, so a choice looks at one of each.
  struct Bid {
    int held = 0, preempted = 0;  // slots of the tenant
    int slots = 0;                // that its next request needs; 0: none fits its key
    bool again = false;           // that request was preempted
    // Slots of the preempted request that may go where that one may not; 0: none.
    int preempted_slots = 0;
    auto operator<=>(const Bid&) const = default;  // NOLINT(modernize-use-nullptr): no pointer here
  };
  struct Tenant {
    uint64_t number = 0;
    int held = 0;                // slots
    int preempted = 0;           // ... that its preempted requests wait for
    uint64_t turn = 0;           // the number of its last turn
    int turns_since_oldest = 0;  // its turns since the queue of the oldest `next` had one
    std::map<const Key*, KeyQueue> queues;
    std::set<Ranked> next;                         // of its queues, where they fit their keys
    std::set<RequestId> next_by_age;               // the same
    std::set<Ranked> preempted_waiting;            // preempted, a part of `queues`
    std::set<std::pair<uint64_t, RequestId>> due;  // that hold slots, by when their quantum ends
    std::optional<std::pair<Bid, uint64_t>> bid;   // and turn: its place in bids_
    bool waits() const { return !queues.empty(); }
  };
  using Tenants = std::map<std::string, Tenant>;
  struct ByName {
    bool operator()(Tenants::iterator a, Tenants::iterator b) const { return a->first < b->first; }
  };
  using TenantSet = std::set<Tenants::iterator, ByName>;
  // A key that has requests here, or none, which is one without a limit.
  struct Key {
    int64_t most = KeyShare().most;
    int held = 0;       // slots
    int requests = 0;   // that wait or hold slots
    TenantSet tenants;  // that have a queue of it
    bool limited() const { return most < KeyShare().most; }
    // Whether it may hold `slots` more.
    bool Fits(int slots) const { return held == 0 || int64_t{held} + slots <= most; }
  };
  using Keys = std::map<std::string, Key>;  // by name
  struct Waiting {
    Tenants::iterator tenant;
    Keys::iterator key;
    Priority priority;
    int slots;
    bool preempted;
  };
  struct Holding {
    Tenants::iterator tenant;
    Keys::iterator key;
    Priority priority;
    int slots;
    uint64_t due;
  };
  // Whether others must make room for a request.
  enum class Claim : uint8_t { kNone, kOfShare, kOfFirst };

  void Wait(RequestId id, const Waiting& waiting);
  void Drop(RequestId id);
  Claim ClaimOf(int held, int slots) const;
  bool MayGo(const Bid& bid) const;
  static RequestId NextOf(const Tenant& tenant);
  std::optional<RequestId> PreemptedOf(const Tenant& tenant) const;
  std::optional<RequestId> Choose() const;
  void Changed(Tenants::iterator tenant, const Key& key);
  void Rank(Tenants::iterator tenant, const Key& key);
  void RankQueue(Tenant* tenant, const Key& key);
  void PlaceBid(Tenants::iterator tenant);
  void SetHeld(Tenants::iterator tenant, int held, uint64_t turn);
  void Forget(Tenants::iterator tenant);
  void Leave(Keys::iterator key);

  const AdmissionLimits limits_;
  Tenants tenants_;
  Keys keys_;
  std::map<RequestId, Waiting> waiting_;
  std::map<RequestId, Holding> holding_;
  std::map<Bid, std::map<uint64_t, Tenants::iterator>> bids_;  // then by turn (all different)
  TenantSet holders_;                                          // of slots
  std::array<int, kNumPriorities> needed_{};
  int held_ = 0, preempted_ = 0, limited_keys_ = 0;
  uint64_t last_turn_ = 0, last_number_ = 0;
  mutable int64_t looked_at_ = 0;
  std::optional<RequestId> next_;  // chosen, and waits for slots
};

}  // namespace rivulet
