// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's own services, which have no handlers of ours, from callers without a key: reflection
// today. Health stays open, as balancers and probes show no key.
#pragma once

#include <grpcpp/server_builder.h>

#include "server/grpc/calls/caller.h"

namespace rivulet {

class ErrorCounts;

// Calls of services whose names begin with "grpc.", but health, end with the error of
// Callers::Check. It comes without details, as gRPC has no place for them here; its message begins
// with the reason. `callers` and `errors` (as in status_map.h) are borrowed and outlive the server
// that is built.
void GuardReflection(const Callers* callers, ErrorCounts* errors, grpc::ServerBuilder* builder);

}  // namespace rivulet
