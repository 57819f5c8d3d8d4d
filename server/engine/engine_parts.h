// SPDX-License-Identifier: Apache-2.0
// The engine from parts, for tests: no model directory, any clock.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/request_queue.h"

namespace rivulet {

// As Engine::Create, with a configuration instead of a model: model() must not be called.
// `tokenizer` is borrowed, null where the content is not text. `clock` is called by any thread;
// while nothing runs, a deadline is noticed when the real time up to it has passed, or at the next
// call of the engine.
std::unique_ptr<Engine> CreateEngineForConfig(ModelConfig config, const Tokenizer* tokenizer,
                                              std::unique_ptr<Backend> backend,
                                              const EngineOptions& options, const Clock& clock);

}  // namespace rivulet
