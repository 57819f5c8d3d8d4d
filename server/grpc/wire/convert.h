// SPDX-License-Identifier: Apache-2.0
// Converts between the messages of the API and the engine's types. Checks the form of a request
// (missing fields, fields that a model of this kind does not have, ranges that hold for every
// model); the engine checks the rest against the model.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model.h"
#include "model/text/text_budget.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/multiplex.pb.h"
#include "rivulet/v1/session_service.pb.h"
#include "server/engine/engine.h"
#include "server/engine/reply.h"
#include "server/engine/request.h"

namespace rivulet {

// The request in the engine's types. The caller sets deadline, tenant and, where the request has
// none, the seed. Errors: INVALID_ARGUMENT naming the field by its path, for example "prompt.text";
// where there is a text or a constraint, the error of `stopped`.
absl::StatusOr<GenerateSpec> ToGenerateSpec(const v1::GenerateRequest& request, const Model& model,
                                            const TextBudget::Stopped& stopped = nullptr);
absl::StatusOr<ScoreSpec> ToScoreSpec(const v1::ScoreRequest& request, const Model& model,
                                      const TextBudget::Stopped& stopped = nullptr);
absl::StatusOr<AppendSpec> ToAppendSpec(const v1::AppendRequest& request, const Model& model,
                                        const TextBudget::Stopped& stopped = nullptr);

// Moves `delta` into `reply`, which keeps nothing of an earlier message.
void ToWire(ReplyDelta delta, v1::GenerateReply* reply);
// The same for a `part`, which must be empty.
void ToWire(ReplyDelta delta, v1::MultiplexPart* part);
void ToWire(const Usage& usage, v1::Usage* wire);
void ToWire(const ScoreResult& result, v1::ScoreReply* reply);
void ToWire(const ScoreResult& result, v1::AppendReply* reply);
void ToWire(const EngineLoad& load, v1::ModelLoad* wire);

// The answer of GetModel; `backend` is "cpu" or "cuda". Constant while the server runs.
v1::GetModelReply DescribeModel(const Engine& engine, absl::string_view backend);

}  // namespace rivulet
