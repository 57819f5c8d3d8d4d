// SPDX-License-Identifier: Apache-2.0
// Replicas: several engines that share a store of sessions, and their clients, on one thread. A
// schedule drawn from a seed decides which replica takes a turn, which call of the store happens
// when and how, which replica is killed or stopped, and what the store loses.
// These always hold:
// - Every token that a client gets equals the token of a lone run of its session.
// - Tokens that a reply called durable are never lost, unless the store lost acknowledged writes.
// - A client that repeats its request gets an answer in the end, and every request ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "tests/simulation/choices.h"
#include "tests/support/fake_backend.h"
#include "tests/support/memory_session_store.h"
#include "tests/support/memory_state_archive.h"

namespace rivulet {

struct ReplicasOptions {
  int events = 600;
  bool verbose = false;
};

// Thread: one.
class Replicas {
 public:
  Replicas(uint64_t seed, const ReplicasOptions& options);
  ~Replicas();

  // Runs the schedule. Returns the first broken promise; empty: none.
  std::string Run();
  // Number of events by name.
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  struct Replica {
    std::shared_ptr<MemorySessionStore> store;
    std::unique_ptr<SteppedEngine> engine;
    bool stopped = false;
  };
  class Client;

  void Event();
  void StartReplica(size_t index);
  void Kill(size_t index);
  void TakeTurn(size_t index);
  void Deliver(size_t index);
  void HarmStore();
  void HarmArchive();
  void Heal();

  void Count(const std::string& what) { ++counts_[what]; }
  void Note(const std::string& what);
  void Break(const std::string& what);

  const ReplicasOptions options_;
  Choices choices_;
  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  absl::Time now_ = absl::FromUnixSeconds(1000);
  absl::Duration store_is_ahead_;      // its clock
  absl::Duration replicas_are_ahead_;  // their wall clock
  MemoryStoreServer server_;
  const std::shared_ptr<MemoryStateArchive> archive_ = std::make_shared<MemoryStateArchive>();
  std::vector<Replica> replicas_;
  std::vector<Replica> killed_;  // their calls to the store may still take effect
  std::vector<std::unique_ptr<Client>> clients_;
  std::optional<MemoryStoreImage> image_;  // the image to which a failover goes back
  int harm_ = 0;                           // percent of the store's calls that are lost
  int lossy_ = 0;                          // times that the store lost acknowledged writes
  SessionLimits limits_;                   // of each replica and of all
  std::string broken_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace rivulet
