// SPDX-License-Identifier: Apache-2.0
// What a call says beside its request.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rivulet {

// Metadata key of the tenant.
inline constexpr char kTenantKey[] = "rivulet-tenant";

// InfiniteFuture where the client gave none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// Whose sessions the call is about: the value of kTenantKey, "" where it is absent. Errors:
// INVALID_ARGUMENT (TENANT_MALFORMED), also where it is given twice: a proxy that adds its own
// value to one of the client's must not be overruled.
absl::StatusOr<std::string> TenantOf(const grpc::CallbackServerContext& context);

// The client's library has sent this call before and does not know what became of it.
bool IsRepeated(const grpc::CallbackServerContext& context);

}  // namespace rivulet
