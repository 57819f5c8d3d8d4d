// SPDX-License-Identifier: Apache-2.0
// Actions: the actions of simulated clients: they send requests, read and cancel.
#pragma once

#include <string>
#include <vector>

#include "tests/simulation/draws.h"
#include "tests/simulation/engine_under_test.h"
#include "tests/simulation/result_judge.h"
#include "tests/simulation/session_judge.h"
#include "tests/simulation/truth.h"

namespace rivulet::simulated {

// Thread: one.
class Actions {
 public:
  // The judges of the results of requests.
  struct Judges {
    StatusJudge* status;
    ResultJudge* results;
    SessionJudge* sessions;
  };
  // All are borrowed.
  Actions(Choices* choices, const TurnClock& clock, EngineUnderTest* engine, Requests* requests,
          Clients* clients, const Judges& judges, Journal* journal)
      : choices_(choices),
        clock_(clock),
        engine_(engine),
        requests_(requests),
        clients_(clients),
        judges_(judges),
        journal_(journal),
        draws_(choices, engine->world(), clock, clients) {}

  // Sends a request of any kind.
  void Ask();
  void CancelSomething();
  // One client reads; all clients read.
  void Read();
  void ReadAll();
  void CloseAll();

 private:
  void Generate(bool in_session);
  // A prediction of the reply that is right in places: drafts from it are right or wrong.
  void Predict(const Asked& asked, GenerateSpec* spec);
  bool CanResume(const Asked& asked, const GenerateSpec& spec) const;
  // Makes `spec` the continuation of a lost reply; returns the samples that the client has of it.
  std::vector<SeenSample> Resume(const Client* client, GenerateSpec* spec);
  void Score();
  void Append();
  void Open();
  void Fork();
  void Rewind();
  void Close();
  void Close(Asked* asked, const SessionRef& ref);
  void List();
  void TakeSnapshot();
  void Restore();
  // Checks that the request is in flight, or was refused for a valid reason.
  void Accepted(Asked* asked, const absl::StatusOr<RequestId>& id);

  Choices* const choices_;
  const TurnClock& clock_;
  EngineUnderTest* const engine_;
  Requests* const requests_;
  Clients* const clients_;
  const Judges judges_;
  Journal* const journal_;
  Draws draws_;
};

}  // namespace rivulet::simulated
