// SPDX-License-Identifier: Apache-2.0
// The last words of a process: one line of the log, event "crash", before a signal ends it.
#pragma once

namespace rivulet {

// From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write one line to stderr and then end the
// process as they would have without this: the same exit status, the same core dump. The line says
// which signal came and why, the thread's name, the method that the thread worked on and what every
// loop was doing. The line has no address and nothing that a client sent. A stack overflow is
// reported on threads that called UseSignalStack (model/base/thread.h).
//
// A signal that has a handler already keeps it, because sanitizers report crashes themselves.
// Call it once, before other threads start.
void InstallCrashHandler();

}  // namespace rivulet
