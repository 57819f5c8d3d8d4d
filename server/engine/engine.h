// SPDX-License-Identifier: Apache-2.0
// Engine: continuous batching for one model. One loop thread plans (Scheduler), submits runs to the
// backend and turns records into replies; one emitter thread tells listeners. No gRPC here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "model/model.h"
#include "server/engine/reply.h"
#include "server/engine/request.h"
#include "server/sessions/session_table.h"
#include "server/sessions/store/prefix_cache.h"

namespace rivulet {

struct EngineOptions {
  // Behaviour.
  int max_queue = 1024;  // samples and scores that may wait for a slot; beyond: RESOURCE_EXHAUSTED
  // ... of one tenant at most so many, and at most seven times what is left (request_queue.h), so
  // that it cannot keep others out. 0: only the latter.
  int max_tenant_queue = 0;
  int64_t max_queue_tokens = 1 << 24;    // given tokens of all accepted requests together, likewise
  int64_t max_tokens_limit = 1 << 20;    // largest GenerateSpec::max_tokens
  int64_t max_request_tokens = 1 << 26;  // ... and most over all samples of a request
  int64_t default_max_tokens =
      256;                   // where the request names none and the model has no natural length
  int max_num_samples = 64;  // also at most the number of slots, and max_tenant_slots
  int max_tenant_slots = 0;  // that one tenant holds at once; 0: all
  int max_stop_ids = 64;
  int max_stop_strings = 16;
  int max_stop_string_bytes = 256;
  int max_top_logprobs = 20;
  int64_t max_score_outputs = 16384;          // output_positions of one Score, ...
  int64_t max_score_output_values = 1 << 24;  // ... and the floats that they hold together
  SessionLimits sessions;                     // of sessions
  StateLimits states;                         // of all states that are kept between runs
  PrefixCacheLimits prefix_cache;             // of those that prompts share; a part of them
  int max_cache_positions = 16;               // PromptCacheSpec::positions
  int max_cache_salt_bytes = 64;
  // Performance.
  // Prompt tokens fed per run while no other reply is running (0: what the backend prefers), and
  // while some are (0: a quarter of that).
  int prefill_tokens_idle = 0;
  int prefill_tokens_busy = 0;
  // Untaken bytes of a reply (ContentBytes; one run may add more) before its rows pause. As much
  // again may be on its way to the client.
  int64_t max_pending_bytes = 16 << 10;
  // For so long a paused reply waits for its reader before it is ended.
  absl::Duration reader_timeout = absl::Seconds(30);
  // Most host memory for the states of replies that gave their slots to others (parked_room.h); at
  // least LeastParkedBytes, else fewer are preempted than their promise needs. 0: twice what
  // all slots take, and 256 MiB, or what all slots take, for those that nobody reads.
  int64_t max_parked_bytes = 0;
  // A reply that was given slots is not preempted for so many runs. A copy of a state out and back
  // in takes as long as a sample's part of two or three steps (mnist-linear on 2 cores: 60 us of
  // copies, 28 us a token of 64), so at 64 preemption costs at most one run in twenty; and where
  // nobody holds its slots for less, another tenant waits for some 0.2 s (64 steps of 64 samples).
  int preempt_after_runs = 64;
};

// A state that every tenant's requests with a PromptCacheSpec may go on from; never forgotten.
struct WarmState {
  std::vector<int32_t> tokens;  // the first of them are what the state has seen
  int64_t fed = 0;              // how many, the implied bos counted; at most all
  std::vector<float> state;     // [bytes_per_slot / 4], of this backend's numerics id
};

struct EngineLoad {
  int slots = 0, slots_used = 0;
  int running = 0;                // samples and scores that hold a slot
  int queued = 0, max_queue = 0;  // ... that wait for one
  int max_tenant_queue = 0;
  // Of those that wait: slots they need, by Priority, and how long the first has waited.
  std::array<int, kNumPriorities> queued_by_priority{};
  absl::Duration oldest_wait;
  int tenants = 0;               // that wait for slots or hold some
  int64_t refused = 0;           // requests, since start, because a queue was full
  int parked = 0;                // samples that gave up their slots: their reader does not read
  int preempted = 0;             // ... for another tenant's requests
  int64_t preempted_total = 0;   // since start
  int64_t cut = 0;               // replies, since start, because nobody read them
  double tokens_per_second = 0;  // sampled and fed, over about the last second
  int64_t tokens_total = 0;      // sampled, since start
  int client_sessions = 0;       // open ones
  StateStore::Usage states;      // of all that is kept between runs
  std::string state_file_error;  // the first, empty: none
  int64_t cache_hits = 0, cache_misses = 0;  // requests with a PromptCacheSpec, since start
  int64_t cache_bytes = 0;                   // of cached prompts: states and tokens
  bool draining = false;
  absl::Status health;  // not OK: the backend is poisoned
};

// Something done to sessions, or to one, between two runs. session_calls.h has those that
// there are.
struct SessionCall {
  std::string tenant;                 // on whose account
  std::optional<SessionRef> session;  // absent: `act` gets null
  bool close = false;                 // ends what is running on the session, and the session
  // Have the session's latest state with all but its last token fed, or fewer, in memory first; of
  // its tokens up to session->position, where that is given.
  bool with_state = false;
  bool while_draining = false;  // also taken in a drain, until its deadline
  absl::Time deadline = absl::InfiniteFuture();
  // On the loop's thread, once the requests of the session that came before have ended. An error
  // must have changed nothing. Null: nothing to do. `state`: see with_state.
  std::function<absl::Status(SessionTable* table, Session* session, absl::Time now,
                             const Checkpoint& state)>
      act;
  std::function<void(absl::Status)> done;  // on the emitter thread, exactly once
};

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
  // "sampling.top_k", "max_tokens", ...), RESOURCE_EXHAUSTED with retry_after (queue full),
  // UNAVAILABLE (draining or poisoned). Natural length where max_tokens is 0: for images height *
  // width * channels minus the prompt; else what is left of the model's max_length; else
  // options().default_max_tokens. A sample always ends at max_length. `listener` must live until
  // the last OnReady has returned: exactly one OnReady begins with Reply::end() set, and it is the
  // last. The first may come before Generate returns. The reply is shared so that a late cancel
  // finds a live object.
  struct Ticket {
    RequestId id = 0;
    std::shared_ptr<Reply> reply;
  };
  virtual absl::StatusOr<Ticket> Generate(GenerateSpec spec, ReplyListener* listener) = 0;

  // Queues a Score. `done` is called exactly once, on the emitter thread, unless Score itself
  // returns an error.
  using ScoreDone = std::function<void(absl::StatusOr<ScoreResult>)>;
  virtual absl::StatusOr<RequestId> Score(ScoreSpec spec, ScoreDone done) = 0;

  // Feeds tokens to a session. As Score; further errors come with `done`: NOT_FOUND
  // (SESSION_NOT_FOUND), and those of ExtendSession (session_request.h).
  virtual absl::StatusOr<RequestId> Append(AppendSpec spec, ScoreDone done) = 0;

  // Errors as Score, before `done` is ever called.
  virtual absl::StatusOr<RequestId> Call(SessionCall call) = 0;

  // Ends a request with CANCELLED within a step or two and frees its slots. Unknown or ended: no
  // effect.
  virtual void Cancel(RequestId id) = 0;

  virtual EngineLoad GetLoad() const = 0;

  // Refuses new requests (UNAVAILABLE) and waits until the running ones end, or `deadline`; then
  // ends the rest with UNAVAILABLE. Returns true if all ended by themselves. Of several drains at
  // once the earliest deadline counts.
  virtual bool Drain(absl::Time deadline) = 0;
};

}  // namespace rivulet
