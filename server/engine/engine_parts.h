// SPDX-License-Identifier: Apache-2.0
// The engine from parts, for tests: no model directory, any clock.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/config.h"
#include "model/text/text_tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/loop/request_queue.h"

namespace rivulet {

// As Engine::Create, with a configuration instead of a model: model() must not be called.
// `tokenizer` is borrowed, null where the content is not text. `clock` is called by any thread;
// while nothing runs, a deadline is noticed when the real time up to it has passed, or at the next
// call of the engine.
std::unique_ptr<Engine> CreateEngineForConfig(ModelConfig config, const TextTokenizer* tokenizer,
                                              std::unique_ptr<Backend> backend,
                                              const EngineOptions& options, const Clock& clock,
                                              DiskTier disk = {}, std::vector<WarmState> warm = {});

// The same engine without threads: whoever holds it is its loop and its emitter, one step after the
// other, so that a schedule can be repeated. Drain never waits: it refuses new requests from now
// on, has the next turns end the rest if `deadline` is past, and says whether none is left. Thread:
// one. It may call the engine (except Turn) while the engine calls the backend or the clock, as
// other threads do.
class SteppedEngine : public Engine {
 public:
  // Takes what has arrived, then carries out at most one run. False: nothing can happen until
  // something arrives or the clock moves.
  virtual bool Turn() = 0;
  // Calls the listeners that there is something for. Not to be called by a listener.
  virtual void Emit() = 0;
};

std::unique_ptr<SteppedEngine> CreateSteppedEngine(ModelConfig config,
                                                   const TextTokenizer* tokenizer,
                                                   std::unique_ptr<Backend> backend,
                                                   const EngineOptions& options, const Clock& clock,
                                                   DiskTier disk = {},
                                                   std::vector<WarmState> warm = {});

}  // namespace rivulet
