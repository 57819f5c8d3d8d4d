// SPDX-License-Identifier: Apache-2.0
// Wire <-> engine. Checks the form of a request (what is missing, what a model of this kind cannot
// take, ranges that hold for every model); the engine checks the rest against the model.
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

// The request in the engine's words; deadline, tenant and, where the request names none, seed are
// left to the caller. Errors: INVALID_ARGUMENT naming the field by its path, for example
// "prompt.text"; that of `stopped`, where there is a text.
absl::StatusOr<GenerateSpec> ToGenerateSpec(const v1::GenerateRequest& request, const Model& model,
                                            const TextBudget::Stopped& stopped = nullptr);
absl::StatusOr<ScoreSpec> ToScoreSpec(const v1::ScoreRequest& request, const Model& model,
                                      const TextBudget::Stopped& stopped = nullptr);
absl::StatusOr<AppendSpec> ToAppendSpec(const v1::AppendRequest& request, const Model& model,
                                        const TextBudget::Stopped& stopped = nullptr);

// `delta` becomes the content of `reply`, which holds nothing of an earlier message afterwards.
void ToWire(ReplyDelta delta, v1::GenerateReply* reply);
// As above, but `part` is empty.
void ToWire(ReplyDelta delta, v1::MultiplexPart* part);
void ToWire(const Usage& usage, v1::Usage* wire);
void ToWire(const ScoreResult& result, v1::ScoreReply* reply);
void ToWire(const ScoreResult& result, v1::AppendReply* reply);
void ToWire(const EngineLoad& load, v1::ModelLoad* wire);

// What GetModel answers; `backend` is "cpu" or "cuda". Constant while the server runs.
v1::GetModelReply DescribeModel(const Engine& engine, absl::string_view backend);

}  // namespace rivulet
