// SPDX-License-Identifier: Apache-2.0
// MultiplexMember: one request of a Multiplex stream, between its engine and the stream's messages.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "rivulet/v1/multiplex.pb.h"
#include "server/base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/reply.h"
#include "server/grpc/calls/call_text.h"
#include "server/grpc/calls/request_record.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/wire/error_counts.h"

namespace rivulet {

class MultiplexMember;

// The interface of the stream for its requests.
class MultiplexOwner {
 public:
  virtual ~MultiplexOwner() = default;
  // `member` has something to take: call Take once. Thread: the engines' emitters.
  virtual void OnMemberReady(MultiplexMember* member) = 0;
};

class MultiplexMember final : public ReplyListener {
 public:
  // `call`: the record of the stream.
  MultiplexMember(uint64_t key, const RequestRecord& call, MultiplexOwner* owner)
      : key_(key), owner_(owner), record_(call, key) {}

  uint64_t key() const { return key_; }
  RequestRecord& record() { return record_; }

  // Hands the request to the engine of `model`, which is held until the engine's last notification.
  // Keeps only the parts of `request` that errors need to name fields. OnMemberReady may come
  // before Submit returns; after an error it never comes. The caller keeps a share of this object.
  absl::Status Submit(ModelHold model, GenerateSpec spec, const v1::GenerateRequest& request);

  // The text of the request, which is converted before Submit.
  CallText& text() { return text_; }

  // Ends the request, even before Submit; no effect after its end. Thread: any that has a share of
  // this object.
  void Cancel();

  void OnReady() override;

  // Adds what has arrived since the last call to `reply`; `errors` as in status_map.h. True: this
  // was the last part, and only the caller still holds this object. Thread: one at a time, once for
  // each OnMemberReady.
  bool Take(v1::MultiplexReply* reply, ErrorCounts* errors);
  // After an exception of Take. True: the caller has to call Take again; false: OnMemberReady has
  // been called meanwhile, which leads to a Take.
  bool Requeue() { return (state_.fetch_or(kQueued) & kQueued) == 0; }

 private:
  // Bits of state_: OnMemberReady was called and Take not yet; the engine has made its last call.
  static constexpr uint8_t kQueued = 1, kEnded = 2;

  // Sets the fields that only the first part has.
  void SetFirst(v1::MultiplexPart* part);
  void AddEnd(const Reply::End& end, bool parts_added, ErrorCounts* errors,
              v1::MultiplexReply* reply);

  const uint64_t key_;
  MultiplexOwner* const owner_;
  RequestRecord record_;
  v1::GenerateRequest outline_;
  CallText text_;
  CallModel model_;
  Mutex mutex_;  // held while submitting: the first OnReady needs reply_
  std::shared_ptr<Reply> reply_;
  std::atomic<uint8_t> state_ = 0;
  uint64_t seed_ = 0;       // used by Take only
  bool seed_sent_ = false;  // this
};

}  // namespace rivulet
