// SPDX-License-Identifier: Apache-2.0
// For a thread that cannot be ended, because a library or the file system keeps it.
#pragma once

#include <thread>

namespace rivulet {

// Detaches the thread, which must own what it uses. exit() then ends the process without destroying
// globals, which the thread may still use. Thread: any.
void LeaveBehind(std::thread thread);

}  // namespace rivulet
