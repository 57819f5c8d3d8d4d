// SPDX-License-Identifier: Apache-2.0
// Reply: the outgoing side of one Generate, a mailbox between the engine's loop and the writer that
// sends to the client. Tokens that arrive while the writer is busy are merged here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "model/backend.h"
#include "server/base/mutex.h"
#include "server/engine/request.h"

namespace rivulet {

// Consecutive tokens of one sample.
struct ReplyDelta {
  int sample_index = 0;
  int64_t first_position = 0;  // of tokens[0] among the sample's generated tokens: 0 = the first
  std::vector<int32_t> tokens;
  std::string text;             // of these tokens, where the model has a tokenizer
  std::vector<float> logprobs;  // [tokens] where asked for
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // [tokens][n] where asked for
  std::optional<Finish> finish;  // set on the sample's last delta (which may hold no tokens)
  std::optional<SessionProgress> session;  // after these tokens, where the request has a session
};

// Memory that the content of a delta takes: 4 bytes per token, its text and its logprobs.
int64_t ContentBytes(const ReplyDelta& delta);

// A reply is a stream of deltas, in order per sample, and then one end. Thread: any.
class Reply {
 public:
  // Takes all deltas that have arrived, oldest first; empty if none has.
  std::vector<ReplyDelta> Take();

  // Set once the reply has ended and, for an OK end, every sample has its finish. After this
  // nothing arrives.
  struct End {
    absl::Status
        status;  // OK, CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE (drain, poisoned backend), ...
    Usage usage;
    std::optional<Durability> durability =
        std::nullopt;  // none without a session or a shared store
  };
  // Nullopt while the reply is running. May be set while deltas are still untaken: Take first.
  std::optional<End> end() const;

  // The id of the request, for Engine::Cancel. Set before Engine::Generate returns; 0 until then.
  RequestId id() const;

  // ReplyFingerprint. Set before the first delta and before an OK end.
  std::optional<uint64_t> fingerprint() const;

  // ContentBytes of the deltas that wait to be taken. The engine pauses the request while this
  // exceeds its limit.
  int64_t pending_bytes() const;

  // Engine side.
  void SetId(RequestId id);
  void SetFingerprint(uint64_t fingerprint);
  // Merges with the untaken delta of the same sample; returns pending_bytes(). REQUIRES:
  // delta.tokens follow the sample's earlier ones, and no finish of this sample came before.
  int64_t Append(ReplyDelta delta);
  // First call wins.
  void Finish(End end);
  // Until Finish, each Take that finds more than `above` pending bytes calls `wake`. `wake` must
  // not take a lock that a caller of this reply may hold.
  void SetWake(int64_t above, std::function<void()> wake);

 private:
  mutable Mutex mutex_;
  std::vector<ReplyDelta> deltas_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> open_ ABSL_GUARDED_BY(mutex_);  // [sample] its untaken delta in deltas_, or -1
  RequestId id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> fingerprint_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<End> end_ ABSL_GUARDED_BY(mutex_);
  int64_t wake_above_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
};

// Called on the emitter thread when a reply has something to take or has ended. It must not block,
// only start a write. Calls for one reply never overlap. The first call may come before
// Engine::Generate has returned.
//
// The end is set on the emitter thread right before the last call. So exactly one call finds
// Reply::end() set when it begins. It is the last call, and after its return the listener may be
// destroyed. Code that sees the end elsewhere, for example when a write completes, must wait for
// this call, which is about to come.
class ReplyListener {
 public:
  virtual ~ReplyListener() = default;
  virtual void OnReady() = 0;
};

// For a listener that serves many replies, called in its OnReady: calls `callback` on this thread
// after the OnReady of all replies that got something in the same run, or at once where no batch is
// being delivered. Like OnReady, `callback` must not block.
void RunAfterBatch(std::function<void()> callback);

}  // namespace rivulet
