// SPDX-License-Identifier: Apache-2.0
// This program's file, and the start of other programs.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <span>
#include <vector>

namespace rivulet {

// The file of this program; empty where the system does not tell. Thread: any.
std::filesystem::path ProgramFile();

// A descriptor that a started program gets.
struct GivenFile {
  int ours = -1;
  int theirs = 0;
};

// Starts `argv` (the last is null; argv[0] without a "/" is looked for in PATH) with `given`, of
// which one is its stdin and the last has the largest number. Its stdout and stderr are /dev/null
// unless given, and it has no other file of this process. Signals of a terminal do not reach it; no
// signal is blocked, and SIGPROF, by which it may limit its time, is not ignored. Sets `pid`, which
// the caller waits for. Returns an errno, or 0. Thread: any.
int StartProgram(const std::vector<const char*>& argv, std::span<const GivenFile> given,
                 pid_t* pid);

}  // namespace rivulet
