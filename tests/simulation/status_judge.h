// SPDX-License-Identifier: Apache-2.0
// StatusJudge: checks that every request ends well, or with a documented error whose cause
// occurred.
#pragma once

#include <string>

#include "tests/simulation/clients.h"
#include "tests/simulation/engine_under_test.h"

namespace rivulet::simulated {

// Thread: one.
class StatusJudge {
 public:
  // All are borrowed.
  StatusJudge(const TurnClock& clock, const EngineUnderTest& engine, const Requests& requests,
              Clients* clients, Journal* journal)
      : clock_(clock), engine_(engine), requests_(requests), clients_(clients), journal_(journal) {}

  // A request of any kind has ended. Returns true if it reached its session, if any, and was not
  // ended from outside.
  bool End(Asked* asked, const absl::Status& status);
  // The request ended with this error, or was refused with it.
  void Error(const Asked& asked, const absl::Status& status);
  // Checks that the message is one printable line, without a pointer or a path.
  void Message(const absl::Status& status);

 private:
  bool HasCause(const Asked& asked, const std::string& reason) const;

  const TurnClock& clock_;
  const EngineUnderTest& engine_;
  const Requests& requests_;
  Clients* const clients_;
  Journal* const journal_;
};

}  // namespace rivulet::simulated
