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

// Starts `argv` (the last is null; argv[0] without a "/" is looked for in PATH) with the files of
// `given`, of which one is its stdin. Its stdout and stderr are /dev/null unless given. It has no
// other file of this process, except those without FD_CLOEXEC below the largest number of `given`.
// Signals of a terminal do not reach it. No signal is blocked, and SIGPROF is not ignored, so that
// it can limit its time. Sets `pid`, which the caller waits for. Returns an errno, or 0.
// Thread: any.
int StartProgram(const std::vector<const char*>& argv, std::span<const GivenFile> given,
                 pid_t* pid);

}  // namespace rivulet
