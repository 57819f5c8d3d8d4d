// SPDX-License-Identifier: Apache-2.0
// For threads that exit() must not wait for, because a library or the file system keeps them.
#pragma once

#include <thread>

namespace rivulet {

// Detaches the thread, which must own what it uses. exit() then ends the process without destroying
// globals, which the thread may still use. Thread: any.
void LeaveBehind(std::thread thread);

// From now on exit() frees nothing of OpenSSL's. A thread of gRPC may still use a TLS connection
// then: gRPC shuts down on one of its own threads if a thread of gRPC dropped the last channel, and
// nothing waits for that shutdown. Thread: main, before anything uses OpenSSL.
void LeaveOpenSslBehind();

}  // namespace rivulet
