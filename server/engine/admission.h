// SPDX-License-Identifier: Apache-2.0
// Admission: who waits for slots, and who gets the next ones. No clock, no threads, no backend:
// what it answers follows from the calls alone.
//
// Slots are shared evenly between tenants: the next ones go to the tenant that holds the fewest,
// between equals to the one whose last turn was longest ago (a tenant that comes anew has just had
// its turn). So a tenant's first request waits for one slot to come free, however many requests
// another tenant has queued, and a tenant that is alone has all slots.
//
// Between a tenant's own requests priority decides, and within one priority the order of arrival.
// Of every kOldestEvery turns that a tenant has while its oldest request waits, one is that
// request's, whatever its priority: one with m older ones before it waits for at most
// kOldestEvery * (m + 1) turns.
//
// A request that needs n slots, once it is next, waits until n are free, and nothing overtakes it:
// so a large request cannot starve.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "server/engine/request.h"

namespace rivulet {

class Admission {
 public:
  static constexpr int kOldestEvery = 8;

  // `id` begins to wait; ids in order of arrival, so one that comes back (its slots had been taken
  // from it) has its old place. Returns a number that stands for the tenant until it neither waits
  // nor holds slots. REQUIRES: it does not wait, slots >= 1.
  uint64_t Add(RequestId id, const std::string& tenant, Priority priority, int slots);
  // It waits no longer. REQUIRES: it waits.
  void Remove(RequestId id);
  // The request that gets its slots now, which it holds from then on; nullopt where none waits, or
  // the next one needs more than are free.
  std::optional<RequestId> Next(int free_slots);
  // `tenant` gives back so many of the slots that it holds.
  void GiveBack(const std::string& tenant, int slots);

  bool empty() const { return waiting_.empty(); }
  // The one that came first of all that wait. REQUIRES: !empty().
  RequestId oldest() const { return waiting_.begin()->first; }
  // Slots that the waiting requests of one priority need.
  int slots_needed(Priority priority) const { return needed_[static_cast<size_t>(priority)]; }
  // Tenants that wait or hold slots.
  int tenants() const { return static_cast<int>(tenants_.size()); }

 private:
  struct Tenant {
    uint64_t key = 0;
    int held = 0;                // slots
    uint64_t turn = 0;           // the number of its last turn
    int turns_since_oldest = 0;  // its turns since its oldest request had one
    std::array<std::set<RequestId>, kNumPriorities> lines;
    bool waits() const;
    RequestId oldest() const;
  };
  using Tenants = std::map<std::string, Tenant>;
  struct Waiting {
    Tenants::iterator tenant;
    Priority priority;
    int slots;
  };
  // Tenants that wait, by whose turn it is.
  using Turn = std::tuple<int, uint64_t>;  // slots held, last turn (all different)
  static Turn TurnOf(const Tenant& tenant) { return {tenant.held, tenant.turn}; }

  RequestId Choose();
  void SetHeld(Tenants::iterator tenant, int held);
  void Forget(Tenants::iterator tenant);

  Tenants tenants_;
  std::map<RequestId, Waiting> waiting_;
  std::map<Turn, Tenants::iterator> turns_;
  std::array<int, kNumPriorities> needed_{};
  uint64_t last_turn_ = 0, last_key_ = 0;
  RequestId next_ = 0;  // chosen, and waits for slots; 0: none is
};

}  // namespace rivulet
