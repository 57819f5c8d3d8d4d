// SPDX-License-Identifier: Apache-2.0
// CrowdClient: one of several threads that make random calls on many sessions of one engine. For
// each session it keeps the tokens that it gave and got, and compares every reply with the tokens
// that the same sequence draws alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/engine/engine.h"
#include "tests/support/lone_session.h"
#include "tests/support/reply_collector.h"
#include "tests/support/session_client.h"

namespace rivulet {

// Counts over all clients.
struct CrowdTally {
  std::atomic<int64_t> tokens{0};  // compared
  std::atomic<int64_t> wrong{0};   // replies that differ
  std::atomic<int64_t> replies{0}, cut{0}, appends{0}, forks{0}, rewinds{0}, restores{0};
  std::atomic<int64_t> reopened{0}, asked_again{0}, sampled{0};
};

struct CrowdLimits {
  int sessions = 250;     // of this client
  int in_flight = 40;     // requests at once; several may be on one session
  int64_t longest = 160;  // longer sequences are rewound
};

// Thread: one. Failures are reported to GoogleTest, and name the seed.
class CrowdClient {
 public:
  // All are borrowed except `alone`. `tenant`: different for each client.
  CrowdClient(Engine* engine, std::unique_ptr<Backend> alone, const std::string& tenant,
              uint32_t seed, const CrowdLimits& limits, CrowdTally* tally);

  // Runs until the tally's tokens reach `target` or a check fails; then closes all sessions.
  void Run(int64_t target);

 private:
  // A session as its client knows it.
  struct Known {
    SessionId id;
    uint64_t seed = 0;
    std::vector<int32_t> tokens;
    std::vector<bool> generated;
    std::map<std::string, int64_t> marks;
    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    void Note(int32_t token, bool was_generated) {
      tokens.push_back(token);
      generated.push_back(was_generated);
    }
    void Truncate(int64_t position);
    uint64_t hash() const { return HashTokens(kEmptySequenceHash, tokens); }
  };
  // A request that has not been compared yet.
  struct Flight {
    explicit Flight(ReplyCollector::Reading reading) : reply(reading) {}
    size_t session = 0;
    GenerateSpec spec;
    ReplyCollector reply;
  };

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  bool OneIn(int n) { return Below(n) == 0; }
  size_t AnyIdle();
  int32_t AnyToken() { return 1 + Below(config_.num_output_tokens() - 1); }
  std::vector<int32_t> AnyTokens(int at_most);
  int64_t Room(const Known& known) const;

  void Round();
  void StartReply(size_t session, bool behind);
  void RandomSampling(GenerateSpec* spec);
  void AskAgain(const Known& known, GenerateSpec* spec);
  void Settle(Flight* flight);
  void Compare(const Flight& flight, const Known& before, const absl::Status& status);
  void Compare(const CollectedSample& got, const DrawnTokens& want, const GenerateSpec& spec);
  void Resync(Known* known);

  void Disturb();  // one blocking call, on a session without a reply
  void Append(Known* known);
  void Fork(const Known& known);
  void Rewind(Known* known);
  void Restore(const Known& known);
  void Reopen(Known* known);
  void Close(const SessionId& id);
  void SampleWithoutSession();

  Engine* const engine_;
  const ModelConfig& config_;
  LoneSession alone_;
  const std::string tenant_;
  const SessionClient client_;
  const uint32_t seed_;
  std::mt19937 random_;
  const CrowdLimits limits_;
  CrowdTally* const tally_;
  std::vector<Known> known_;
  std::vector<bool> in_flight_;  // [sessions]
  std::deque<Flight> flights_;
  std::vector<RequestId> ended_;  // requests of this client
};

}  // namespace rivulet
