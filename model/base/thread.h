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

// For the process, from now on: for the calling thread at once. Sanitizers bring stacks of their
// own, so leave these off there.
void TurnOnSignalStacks();

}  // namespace rivulet
