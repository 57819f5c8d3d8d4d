// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/multiplex/multiplex_member.h"

#include <utility>
#include <vector>

#include "server/grpc/wire/convert.h"
#include "server/grpc/wire/convert_session.h"
#include "server/grpc/wire/wire_field.h"

namespace rivulet {
namespace {

// The part that NameWireField reads: the kind of the prompt, not its content.
v1::GenerateRequest Outline(const v1::GenerateRequest& request) {
  v1::GenerateRequest outline;
  if (request.has_text()) outline.mutable_text();
  if (request.has_image_values()) outline.mutable_image_values();
  if (request.has_tokens()) outline.mutable_tokens();
  return outline;
}

}  // namespace

absl::Status MultiplexMember::Submit(ModelHold model, GenerateSpec spec,
                                     const v1::GenerateRequest& request) {
  RequestId id = 0;
  {
    MutexLock lock(&mutex_);
    outline_ = Outline(request);
    seed_ = spec.sampling.seed;
    Engine* const engine = model.engine();
    model_.Hold(std::move(model));
    absl::StatusOr<std::shared_ptr<Reply>> submitted = engine->Generate(std::move(spec), this);
    if (!submitted.ok()) return NameWireField(submitted.status(), outline_);
    reply_ = *std::move(submitted);
    id = reply_->id();
  }
  model_.SetId(id);
  return absl::OkStatus();
}

void MultiplexMember::Cancel() {
  text_.Cancel();
  model_.Cancel();
}

void MultiplexMember::OnReady() {
  bool last = false;
  {
    MutexLock lock(&mutex_);
    // The engine ends a reply on the thread that calls OnReady, just before the last call.
    last = reply_->end().has_value();
  }
  if (last) model_.Release();
  MultiplexOwner* const owner = owner_;
  const uint8_t before = state_.fetch_or(last ? kQueued | kEnded : kQueued);
  // If it is queued already, Take may come now and destroy it: do not touch it.
  if ((before & kQueued) == 0) owner->OnMemberReady(this);
}

bool MultiplexMember::Take(v1::MultiplexReply* reply, ErrorCounts* errors) {
  // First: anything that arrives from here on leads to another call.
  const bool ended = (state_.fetch_and(uint8_t{0xff} & ~kQueued) & kEnded) != 0;
  std::vector<ReplyDelta> deltas = reply_->Take();
  for (ReplyDelta& delta : deltas) {
    if (delta.session) seed_ = delta.session->seed;
    v1::MultiplexPart* const part = reply->add_parts();
    ToWire(std::move(delta), part);
    part->set_key(key_);
    SetFirst(part);
  }
  if (ended) AddEnd(*reply_->end(), !deltas.empty(), errors, reply);
  return ended;
}

void MultiplexMember::SetFirst(v1::MultiplexPart* part) {
  if (std::exchange(seed_sent_, true)) return;
  part->set_seed(seed_);
  if (const auto known = reply_->fingerprint()) part->set_fingerprint(*known);
}

void MultiplexMember::AddEnd(const Reply::End& end, bool parts_added, ErrorCounts* errors,
                             v1::MultiplexReply* reply) {
  const bool on_last = end.status.ok() && parts_added;
  v1::MultiplexPart* const part =
      on_last ? reply->mutable_parts(reply->parts_size() - 1) : reply->add_parts();
  part->set_key(key_);
  record_.SetUsage(end.usage);
  if (!end.status.ok()) {
    record_.End(NameWireField(end.status, outline_), errors, part->mutable_error());
    record_.Write();
    return;
  }
  record_.End(absl::OkStatus(), nullptr);
  record_.Write();
  SetFirst(part);
  ToWire(end.usage, part->mutable_usage());
  if (end.durability) ToWire(*end.durability, part->mutable_durability());
}

}  // namespace rivulet
