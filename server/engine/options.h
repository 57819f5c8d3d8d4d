// SPDX-License-Identifier: Apache-2.0
// What an engine is given: its model, and its options (limits, time-outs, states that are loaded at
// start).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "model/config.h"
#include "model/text/text_tokenizer.h"
#include "server/constraints/compiler.h"
#include "server/sessions/replicated/session_store.h"
#include "server/sessions/replicated/state_archive.h"
#include "server/sessions/session_table.h"
#include "server/sessions/store/prefix_cache.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

// What the engine knows about the model. Borrowed.
struct ModelView {
  const ModelConfig* config = nullptr;
  const TextTokenizer* tokenizer = nullptr;  // null: no text
  uint64_t fingerprint = 0;                  // ModelFingerprint (reply_fingerprint.h)
  bool late_masks = false;                   // BackendLimits::late_masks
  int max_drafts = 0;                        // DraftLimits::most
};

// Which states of sessions are published for other replicas.
struct PublishOptions {
  // Tokens that are fed between two published states; nullopt: follows from measured times.
  std::optional<int64_t> after_tokens;
  int64_t max_pending_bytes = int64_t{64} << 20;  // of states that are being published
};

struct EngineOptions {
  // Behaviour.
  // Samples, scores and session calls that may wait; more: RESOURCE_EXHAUSTED.
  int max_queue = 1024;
  // The same of one tenant. In any case a tenant gets at most seven times what is left free
  // (fair_share.h), so that it cannot keep others out. 0: no other limit.
  int max_tenant_queue = 0;
  int64_t max_queue_tokens = 1 << 24;    // given tokens of all accepted requests; shared so, too
  int64_t max_tokens_limit = 1 << 20;    // largest GenerateSpec::max_tokens
  int64_t max_request_tokens = 1 << 26;  // ... and most over all samples of a request
  int64_t default_max_tokens =
      256;                   // where the request names none and the model has no natural length
  int max_num_samples = 64;  // and at most the number of slots, and max_tenant_slots
  int max_tenant_slots = 0;  // that one tenant holds at once; 0: all
  int max_stop_ids = 64;
  int max_stop_strings = 16;
  int max_stop_string_bytes = 256;
  int max_top_logprobs = 20;
  int64_t max_score_outputs = 16384;            // output_positions of one Score, ...
  int64_t max_score_output_values = 1 << 24;    // ... and the floats that they hold together
  SessionLimits sessions;                       // of sessions
  std::shared_ptr<SessionStore> session_store;  // that replicas share; null: none
  // Where replicas publish states. Null: nowhere, so a replica recomputes the states of a session
  // that it takes over. Not used without a session_store.
  std::shared_ptr<StateArchive> state_archive;
  PublishOptions publish;
  StateLimits states;              // of all states that are kept between runs
  PrefixCacheLimits prefix_cache;  // of the states that prompts share, a part of `states`
  int max_cache_positions = 16;    // PromptCacheSpec::positions
  int max_cache_salt_bytes = 64;
  std::shared_ptr<ConstraintCompiler> constraints;  // null: none, they are refused
  // Performance.
  // Prompt tokens fed per run while no other reply is running (0: the backend's preference), and
  // while other replies are running (0: a quarter of prefill_tokens_idle).
  int prefill_tokens_idle = 0;
  int prefill_tokens_busy = 0;
  // Bytes of a reply that may wait to be taken (ContentBytes; one run may add more) before its rows
  // pause. The same number of bytes may be on the way to the client.
  int64_t max_pending_bytes = 16 << 10;
  // How long a paused reply waits for its reader before it is ended.
  absl::Duration reader_timeout = absl::Seconds(30);
  // Most host memory for the states of parked and of preempted replies (host_memory.h). With less
  // than LeastHostBytes, fewer replies are preempted than the bound on waiting times needs
  // (admission.h). 0: the default of StateMemoryOf (host_memory.h).
  int64_t max_host_bytes = 0;
  // Runs for which a reply that got slots is not preempted. To copy a state out and back in takes
  // as long as two or three steps of one sample (mnist-linear on 2 cores: 60 us of copies, 28 us a
  // token with 64 samples). So at 64 runs preemption costs at most one run in thirty, and another
  // tenant waits for some 0.2 s (64 steps of 64 samples) if no slot becomes free earlier.
  int preempt_after_runs = 64;
};

// A state from which requests of every tenant with a PromptCacheSpec may continue; never forgotten.
struct WarmState {
  std::vector<int32_t> tokens;  // the state has seen the first of them
  int64_t fed = 0;              // how many it has seen, the implied bos counted
  // [BackendLimits::state_size().At(fed) / 4], of this backend's numerics id.
  std::vector<float> state;
};

}  // namespace rivulet
