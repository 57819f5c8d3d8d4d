// SPDX-License-Identifier: Apache-2.0
// Requests together with what their calls say beside them.
#pragma once

#include <grpcpp/server_context.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/session_service.pb.h"
#include "server/engine/request.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/text_pool.h"

namespace rivulet {

// A repeated call that feeds a session would feed it twice, and go on after tokens that the client
// never saw; at a position it cannot. Errors: ABORTED (POSITION_NEEDED). Thread: any.
absl::Status CheckRepetition(const grpc::CallbackServerContext& context, const SessionRef& ref);

// What a Generate asks the engine for, complete: with deadline, tenant, and a seed that is drawn
// where neither request nor session has one. Errors: those of ToGenerateSpec and
// CheckRepetition, and that of `turn`, which is the text's. Thread: any.
absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const Caller& caller, const v1::GenerateRequest& request,
                                    const Model& model, const TextTurn& turn);

// What a Score asks for, complete. Errors: those of ToScoreSpec and that of `turn`. Thread: any.
absl::StatusOr<ScoreSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                 const v1::ScoreRequest& request, const Model& model,
                                 const TextTurn& turn);

// What an Append asks for, complete. Errors: those of ToAppendSpec and CheckRepetition, and that of
// `turn`. Thread: any.
absl::StatusOr<AppendSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                  const v1::AppendRequest& request, const Model& model,
                                  const TextTurn& turn);

}  // namespace rivulet
