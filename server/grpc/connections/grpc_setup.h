// SPDX-License-Identifier: Apache-2.0
// The set-up of gRPC and Protocol Buffers that a process does once. How their logs are read depends
// on their versions and on that of Abseil; grpc_setup.cc has all of it.
#pragma once

namespace rivulet {

// Servers that are built later have the health service. Lines that gRPC logs become events "grpc"
// of the server's log, at most kLoggedPerSecond per second; those of Protocol Buffers before
// version 22 are dropped, as they repeat what the error of the call says. With gRPC 1.65 and newer
// this calls absl::InitializeLog, which a process may call only once. Thread: any; only the first
// call does something.
void SetUpGrpc();

}  // namespace rivulet
