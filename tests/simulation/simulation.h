// SPDX-License-Identifier: Apache-2.0
// Simulation: an engine, its clients, its clock and its faults on one thread, a schedule of what
// happens drawn from Choices, and after each turn a look at everything that the engine promises.
// The same choices give the same schedule.
//
// Invariants (the names are those of README.md): I1 each reply is a prefix of what its session
// draws alone, complete if it ended well; I4 nothing depends on anybody else; I5 what failed
// changed nothing; I6 queues, pending tokens, parked and kept states stay within their limits; I7 a
// failed backend is said to have failed; I8 every request ends, and its error is one of those in
// docs/api.md for a cause that there was; I9 sessions, places and slots are conserved; I10 free
// slots are zero, messages hold no pointer and no path.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "tests/simulation/choices.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/faulty_disk.h"
#include "tests/simulation/shared_prompts.h"
#include "tests/simulation/truth.h"
#include "tests/simulation/turns.h"
#include "tests/simulation/watched_backend.h"

namespace rivulet {

struct SimulationOptions {
  Mutant mutant = Mutant::kNone;
  int max_actions = 500;
  bool trace = false;  // keep what happened, to be printed
};

class Simulation {
 public:
  Simulation(Choices choices, const SimulationOptions& options);
  ~Simulation();

  // Carries out the schedule. Returns the first broken promise; empty: all were kept.
  std::string Run();

  const std::vector<std::string>& trace() const { return trace_; }
  const std::map<std::string, int64_t>& counts() const { return counts_; }  // by what happened

 private:
  using Client = simulated::Client;
  using Asked = simulated::Asked;
  using Kept = simulated::Kept;

  // world.cc: the engine.
  void DrawWorld();
  void DrawLimits();
  void DrawDisk();
  std::vector<WarmState> DrawWarm();

  // simulation.cc: time.
  void Act();
  void BeginTurn();
  void Turn(bool emit);
  void Stop();
  void JudgeEnds();
  void Emit();
  void OnBackendCall();
  void MoveClock();
  bool WorkOnDisk(int pieces);  // true: there was some
  void FinishAll();

  // checks.cc: what must hold after each turn, and at rest.
  void CheckAfterTurn();
  void CheckAsked(const Asked& asked);
  void CheckReader(Asked* asked);
  void CheckParked(const EngineLoad& load);
  // `holders`: requests that may have held a kept state when the load was noted.
  void CheckLoad(bool idle, int64_t holders);
  void CheckStates(const EngineLoad& load, int64_t holders);
  void CheckRest();
  // With `last`, its tenant has more than it may.
  bool TenantTookTooMuch(const Asked& last) const;
  bool BackendFailed() const;
  bool MayHaveExpired(const Client& client) const;
  void ExpireClients();
  void Broken(const std::string& what);
  void Note(absl::FunctionRef<std::string()> what);
  void Count(const std::string& what) { ++counts_[what]; }
  int64_t Counted(const std::string& what) const;

  // actions.cc: what clients ask for.
  void Ask();
  void Generate(bool in_session);
  void Score();
  void Append();
  void Open();
  void Fork();
  void Rewind();
  void Close();
  void Close(Asked* asked, const SessionRef& ref);
  void CloseAll();
  void ListAll();
  void TakeSnapshot();
  void Restore();
  void CancelSomething();
  void Read();
  static void ReadOf(Asked* asked);
  Asked* Start(std::string what);
  // The request is in flight, or was refused for a good reason.
  void Accepted(Asked* asked, const absl::StatusOr<RequestId>& id);

  // draws.cc: the parts of that.
  SessionRef DrawSession(Asked* asked);
  void DrawHash(const Asked& asked, SessionRef* ref);
  GenerateSpec DrawGenerate();
  std::vector<int32_t> DrawTokens(int most);
  std::vector<int32_t> DrawPrompt();
  PromptCacheSpec DrawCache(int64_t longest);
  absl::Time DrawDeadline();
  std::string DrawTenant();
  std::string DrawMark();
  Priority DrawPriority();

  // result_judge.cc, session_judge.cc: what is made of their ends. End is for all kinds; true: it
  // reached its session, if any, and was not ended from outside.
  bool End(Asked* asked, const absl::Status& status);
  void EndGenerate(Asked* asked, const GenerateSpec& spec, const SeenReply& seen,
                   const Usage& usage);
  void JudgeWait(const Asked& asked, absl::Time admitted);
  void JudgeUsage(const Asked& asked, const GenerateSpec& spec, const SeenReply& seen,
                  const Usage& usage);
  // `given`: all that it goes on from, of which `appended` tokens were its own; it says that
  // `cached` of these were not fed, and `most` can be.
  void JudgeShared(const Asked& asked, const PromptCacheSpec& cache, const SessionState& given,
                   int64_t appended, int64_t cached, int64_t most);
  void EndAppend(Asked* asked, const AppendSpec& spec, const absl::StatusOr<ScoreResult>& seen);
  void EndScore(Asked* asked, const ScoreSpec& spec, const absl::StatusOr<ScoreResult>& seen);
  void EndFork(Asked* asked, const ForkSpec& spec,
               const absl::StatusOr<std::vector<SessionInfo>>& seen);
  void EndRewind(Asked* asked, const SessionRef& to, const absl::StatusOr<SessionInfo>& seen);
  void EndList(const Asked& asked, const std::string& tenant, const std::vector<SessionInfo>& seen);
  void EndSnapshot(Asked* asked, const SessionRef& ref, const absl::StatusOr<SessionImage>& seen);
  void KeepSnapshot(const Asked& asked, const SessionImage& image);
  void JudgeError(const Asked& asked, const absl::Status& status);
  bool HasCause(const Asked& asked, const std::string& reason) const;
  void JudgeMessage(const absl::Status& status);
  Client* NewClient(const SessionInfo& info, const std::string& tenant,
                    std::vector<SessionState> maybe);
  void Used(Client* client, bool for_certain);
  int MostClients(int turn, const std::optional<std::string>& tenant = std::nullopt) const;
  void Remove(const Asked* asked);
  // Keeps the states of the client that `fits` explains, each replaced by what follows from it.
  void Narrow(const Asked& asked,
              absl::FunctionRef<std::vector<SessionState>(const SessionState&)> follow);
  static bool Fits(const SessionInfo& info, const Client& client, const SessionState& state);

  Choices choices_;
  const SimulationOptions options_;
  World world_;
  Truth truth_{world_};
  int letters_ = 26;                            // tokens that clients give: 0 to letters_ - 1
  std::array<std::vector<int32_t>, 2> common_;  // that prompts begin with
  int64_t warm_bytes_ = 0;                      // of states that were loaded for all
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  std::optional<FaultyDisk> disk_;
  bool slow_disk_ = false;
  std::unique_ptr<SteppedEngine> engine_;

  int turn_ = 0;                               // turns begun
  std::vector<absl::Time> turn_clocks_{now_};  // [turn] when it began ...
  std::vector<int64_t> turn_runs_{0};          // ... and the runs before it
  int told_turn_ = 0;         // all that had been published by the end of this turn is told
  absl::Time latest_ = now_;  // the latest that any turn began
  bool clock_went_back_ = false;
  std::optional<int> failed_at_turn_;  // the backend had failed when this turn began
  bool draining_ = false, ended_rest_ = false, stopping_ = false;
  bool quiet_ = false;  // nobody disturbs any more
  int actions_ = 0, last_number_ = 0;
  int64_t tokens_seen_ = 0;
  std::list<Asked> asked_;  // oldest first
  std::deque<Client> clients_;
  SharedPrompts shared_;
  Turns turns_;
  std::vector<Kept> snapshots_;
  std::string broken_;
  std::vector<std::string> trace_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace rivulet
