// SPDX-License-Identifier: Apache-2.0
// An engine made of parts, for tests: without a model directory, with any clock.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/config.h"
#include "model/text/text_tokenizer.h"
#include "server/engine/clock.h"
#include "server/engine/engine.h"

namespace rivulet {

// As Engine::Create, with a configuration instead of a model: model() must not be called.
// `tokenizer` is borrowed; null where the content is not text. Any thread may call `clock`. While
// nothing runs, the loop sleeps in real time: it notices that `clock` has passed a deadline once
// the same span of real time has passed, or at the next call of the engine.
std::unique_ptr<Engine> CreateEngineForConfig(const ModelConfig& config,
                                              const TextTokenizer* tokenizer,
                                              std::unique_ptr<Backend> backend,
                                              const EngineOptions& options, const Clock& clock,
                                              DiskTier disk = {}, std::vector<WarmState> warm = {});

// The same engine without threads: its owner calls the loop's and the emitter's work step by step,
// so that a schedule can be repeated. Drain never waits: it refuses new requests from now on, makes
// the next turns end the rest if `deadline` is past, and returns whether none is left. Thread: one.
// To stand for other threads, that thread may call the engine (except Turn) while the engine calls
// the backend or the clock.
class SteppedEngine : public Engine {
 public:
  // Takes in what has arrived, then does at most one run. False: nothing can happen until something
  // arrives or the clock moves.
  virtual bool Turn() = 0;
  // Calls the listeners that have something to take. A listener must not call Emit.
  virtual void Emit() = 0;
};

std::unique_ptr<SteppedEngine> CreateSteppedEngine(const ModelConfig& config,
                                                   const TextTokenizer* tokenizer,
                                                   std::unique_ptr<Backend> backend,
                                                   const EngineOptions& options, const Clock& clock,
                                                   DiskTier disk = {},
                                                   std::vector<WarmState> warm = {});

}  // namespace rivulet
