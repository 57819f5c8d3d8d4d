// SPDX-License-Identifier: Apache-2.0
#include "model/base/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "model/base/descriptor.h"

namespace rivulet {

std::filesystem::path ProgramFile() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

int StartProgram(const std::vector<const char*>& argv, std::span<const GivenFile> given,
                 pid_t* pid) {
  int last = STDERR_FILENO;
  for (const GivenFile& file : given) last = std::max(last, file.theirs);
  // Above all numbers that are given, or one file would replace another before it is given.
  std::vector<Descriptor> above;
  for (const GivenFile& file : given) {
    above.emplace_back(fcntl(file.ours, F_DUPFD_CLOEXEC, last + 1));
    if (!above.back().ok()) return errno;
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (size_t i = 0; i < given.size(); ++i) {
    posix_spawn_file_actions_adddup2(&files, above[i].get(), given[i].theirs);
  }
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    const auto is = [output](const GivenFile& file) { return file.theirs == output; };
    if (std::ranges::any_of(given, is)) continue;
    posix_spawn_file_actions_addopen(&files, output, "/dev/null", O_WRONLY, 0);
  }
  posix_spawn_file_actions_addclosefrom_np(&files, last + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigaddset(&signals, SIGPROF);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  const int error = posix_spawnp(pid, argv[0], &files, &attributes,
                                 const_cast<char* const*>(argv.data()), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace rivulet
