// SPDX-License-Identifier: Apache-2.0
// The set-up of gRPC and Protocol Buffers that a process does once. How their logs are read depends
// on the versions of both and of Abseil; grpc_setup.cc handles this.
#pragma once

namespace rivulet {

// Servers that are built later have the health service. Lines that gRPC logs become events "grpc"
// of the server's log, at most kLoggedPerSecond per second. Lines of Protocol Buffers before
// version 22 are dropped, because they repeat the error of the call. With gRPC 1.65 and newer this
// calls absl::InitializeLog, which a process may call only once. Thread: any; only the first call
// does something.
void SetUpGrpc();

}  // namespace rivulet
