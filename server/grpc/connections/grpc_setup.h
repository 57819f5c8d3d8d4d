// SPDX-License-Identifier: Apache-2.0
// What gRPC and Protocol Buffers have once for a process. How their logs are read depends on their
// versions, and that of Abseil: all of it stands in grpc_setup.cc.
#pragma once

namespace rivulet {

// Servers that are built from now on have the health service. Lines that gRPC logs become events
// "grpc" of the server's log, at most kLoggedPerSecond a second; those of Protocol Buffers before
// version 22 are dropped, as they repeat what the error of the call says. With gRPC 1.65 and newer
// this calls absl::InitializeLog, which a process may call only once. Thread: any; only the first
// call does something.
void SetUpGrpc();

}  // namespace rivulet
