// SPDX-License-Identifier: Apache-2.0
// Engine: continuous batching for one model. One loop thread plans (Scheduler), submits runs to the
// backend and turns records into replies; one emitter thread calls listeners. No gRPC here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "model/model.h"
#include "server/engine/load.h"
#include "server/engine/meters.h"
#include "server/engine/options.h"
#include "server/engine/reply.h"
#include "server/engine/request.h"
#include "server/engine/session_command.h"
#include "server/sessions/store/state_files.h"

namespace rivulet {

// Thread: every public method may be called from any thread.
class Engine {
 public:
  // Takes the backend; starts both threads, and a third where there is a disk tier.
  static std::unique_ptr<Engine> Create(std::shared_ptr<const Model> model,
                                        std::unique_ptr<Backend> backend,
                                        const EngineOptions& options, DiskTier disk = {},
                                        std::vector<WarmState> warm = {});
  virtual ~Engine() = default;  // Stops at once: running replies end with UNAVAILABLE

  virtual const Model& model() const = 0;
  virtual const BackendLimits& limits() const = 0;
  virtual const EngineOptions& options() const = 0;

  // Checks `spec` against model and limits, then queues it. Errors (before anything is queued):
  // INVALID_ARGUMENT or OUT_OF_RANGE naming the field as in the proto ("prompt.tokens[3]",
  // "sampling.top_k", "max_tokens", ...), RESOURCE_EXHAUSTED with retry_after (the queue is full,
  // or the token quota of the key is used up), UNAVAILABLE (draining or poisoned),
  // FAILED_PRECONDITION (RESUME_MISMATCH: the reply to resume belongs to another request, or to
  // another server that generates other tokens). With a session, the errors of a resume come when
  // its turn comes. Where max_tokens is 0, a sample has the natural length: for images height *
  // width * channels minus the prompt; else what is left of model_max_tokens() (config.h); else
  // options().default_max_tokens. A sample always ends when its sequence has max_tokens() tokens
  // (config.h). `listener` must live until the last OnReady has returned: exactly one OnReady
  // begins with Reply::end() set, and it is the last. The first may come before Generate returns.
  // The reply is shared so that a late cancel finds a live object.
  virtual absl::StatusOr<std::shared_ptr<Reply>> Generate(GenerateSpec spec,
                                                          ReplyListener* listener) = 0;

  // Queues a Score. `done` is called exactly once, on the emitter thread, unless Score itself
  // returns an error.
  using ScoreDone = std::function<void(absl::StatusOr<ScoreResult>)>;
  virtual absl::StatusOr<RequestId> Score(ScoreSpec spec, ScoreDone done) = 0;

  // Feeds tokens to a session. As Score; further errors come with `done`: NOT_FOUND
  // (SESSION_NOT_FOUND), and the errors of ExtendSession (live_session_command.h).
  virtual absl::StatusOr<RequestId> Append(AppendSpec spec, ScoreDone done) = 0;

  // Errors: as Score, before `done` is called.
  virtual absl::StatusOr<RequestId> Call(SessionCommand call) = 0;

  // Ends a request with CANCELLED within a step or two and frees its slots. Unknown or ended: no
  // effect.
  virtual void Cancel(RequestId id) = 0;

  virtual EngineLoad GetLoad() const = 0;
  // Counts and times since the start; lives as long as the engine.
  virtual const EngineMeters& meters() const = 0;

  // Refuses new requests (UNAVAILABLE) and waits until the running ones end, or `deadline`; then
  // ends the rest with UNAVAILABLE. Returns true if all ended by themselves. If several threads
  // drain at once, the earliest deadline counts.
  virtual bool Drain(absl::Time deadline) = 0;
};

}  // namespace rivulet
