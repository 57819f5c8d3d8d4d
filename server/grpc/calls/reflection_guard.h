// SPDX-License-Identifier: Apache-2.0
// Keeps callers without a key from gRPC's own services (today reflection), for which we have no
// handlers. Health stays open, because balancers and probes have no key.
#pragma once

#include <grpcpp/server_builder.h>

#include "server/grpc/calls/caller.h"

namespace rivulet {

class ErrorCounts;

// Calls of services whose names begin with "grpc.", except health, end with the error of
// Callers::Check. The error has no details, as gRPC has no place for them here; its message begins
// with the reason. `callers` and `errors` (as in status_map.h) are borrowed and outlive the server
// that is built.
void GuardReflection(const Callers* callers, ErrorCounts* errors, grpc::ServerBuilder* builder);

}  // namespace rivulet
