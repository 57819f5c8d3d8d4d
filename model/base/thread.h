// SPDX-License-Identifier: Apache-2.0
// What a thread of ours does first: it takes a name, and a stack for signal handlers.
#pragma once

namespace rivulet {

// Names the calling thread for `top -H`, debuggers and the line that a crash leaves; at most 15
// characters. Also calls UseSignalStack.
void NameThread(const char* name);

// Gives the calling thread a stack of its own for signal handlers, so that a handler also runs when
// the thread's stack is full. Does nothing before TurnOnSignalStacks. Cheap when repeated: call it
// on threads that a library started.
void UseSignalStack();

// Makes UseSignalStack work from now on, in the whole process, and calls it for the calling thread.
// Not for builds with a sanitizer, which bring stacks of their own.
void TurnOnSignalStacks();

}  // namespace rivulet
