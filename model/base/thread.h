// SPDX-License-Identifier: Apache-2.0
// The first calls of each thread of ours: they set its name, and a stack for signal handlers.
#pragma once

namespace rivulet {

// Names the calling thread for `top -H`, debuggers and the log line of a crash; at most 15
// characters. Also calls UseSignalStack.
void NameThread(const char* name);

// Gives the calling thread a stack of its own for signal handlers, so that a handler also runs when
// the thread's stack is full. Does nothing before TurnOnSignalStacks. Cheap when repeated: call it
// on threads that a library started.
void UseSignalStack();

// Makes UseSignalStack work from now on, in the whole process, and calls it for the calling thread.
// Not for builds with a sanitizer, which has its own stacks.
void TurnOnSignalStacks();

}  // namespace rivulet
