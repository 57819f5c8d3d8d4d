// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/call_spec.h"

#include "model/base/error.h"
#include "model/base/random_word.h"
#include "server/grpc/wire/convert.h"

namespace rivulet {

absl::Status CheckRepetition(const grpc::CallbackServerContext& context, const SessionRef& ref) {
  if (ref.position || !IsRepeated(context)) return absl::OkStatus();
  ErrorDetail detail;
  detail.reason = "POSITION_NEEDED";
  detail.field = "session.position";
  return MakeError(absl::StatusCode::kAborted,
                   "session.position is absent, and the client's library has sent this call before "
                   "without an answer: only a call at a position may be repeated.",
                   detail);
}

absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const Caller& caller, const v1::GenerateRequest& request,
                                    const Model& model, const TextTurn& turn) {
  RIVULET_ASSIGN_OR_RETURN(GenerateSpec spec, ToGenerateSpec(request, model, turn.Stopped()));
  spec.deadline = DeadlineOf(context);
  spec.tenant = caller.tenant;
  spec.key = caller.account();
  if (spec.session) {
    spec.session->tenant = spec.tenant;
    RIVULET_RETURN_IF_ERROR(CheckRepetition(context, *spec.session));
    spec.session->repeated = IsRepeated(context);
  }
  if (!request.sampling().has_seed() && !spec.session_seed) spec.sampling.seed = RandomWord();
  return spec;
}

absl::StatusOr<ScoreSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                 const v1::ScoreRequest& request, const Model& model,
                                 const TextTurn& turn) {
  RIVULET_ASSIGN_OR_RETURN(ScoreSpec spec, ToScoreSpec(request, model, turn.Stopped()));
  spec.tenant = caller.tenant;
  spec.key = caller.account();
  spec.deadline = DeadlineOf(context);
  return spec;
}

absl::StatusOr<AppendSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                  const v1::AppendRequest& request, const Model& model,
                                  const TextTurn& turn) {
  RIVULET_ASSIGN_OR_RETURN(AppendSpec spec, ToAppendSpec(request, model, turn.Stopped()));
  RIVULET_RETURN_IF_ERROR(CheckRepetition(context, spec.session));
  spec.session.tenant = caller.tenant;
  spec.key = caller.account();
  spec.deadline = DeadlineOf(context);
  return spec;
}

}  // namespace rivulet
