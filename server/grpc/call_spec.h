// SPDX-License-Identifier: Apache-2.0
// What a Generate asks the engine for: its request, and what its call says beside it.
#pragma once

#include <grpcpp/server_context.h>

#include "absl/status/statusor.h"
#include "model/model.h"
#include "rivulet/v1/inference.pb.h"
#include "server/engine/request.h"

namespace rivulet {

// Complete: with deadline, tenant, and a seed that is drawn where neither request nor session has
// one. Errors: those of ToGenerateSpec and TenantOf; ABORTED (POSITION_NEEDED) for a call without
// session.position that the client's library repeats. Thread: any.
absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const v1::GenerateRequest& request, const Model& model);

}  // namespace rivulet
