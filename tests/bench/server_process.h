// SPDX-License-Identifier: Apache-2.0
// A `rivulet-server` process of its own, on a free port of loopback, ended with SIGTERM.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/paths.h"

namespace rivulet {

class ServerProcess {
 public:
  // `flags`: besides --listen. Ends this process if the server does not start.
  explicit ServerProcess(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {ProgramPath("rivulet-server"), "--listen", "127.0.0.1:0"});
    int log[2];
    if (pipe(log) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(log[1], STDERR_FILENO);
      close(log[0]);
      std::vector<char*> argv;
      for (std::string& flag : flags) argv.push_back(flag.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(log[1]);
    FILE* lines = fdopen(log[0], "r");
    char line[4096];
    while (target_.empty() && fgets(line, sizeof line, lines) != nullptr) {
      const std::string text = line, key = "\"event\":\"listening\"", port = "\"port\":";
      const size_t at = text.find(port);
      if (text.find(key) == std::string::npos || at == std::string::npos) continue;
      target_ = "127.0.0.1:" + std::to_string(std::atoi(text.c_str() + at + port.size()));
    }
    if (target_.empty()) {
      std::fprintf(stderr, "%s did not start\n", flags[0].c_str());
      std::exit(1);
    }
    drain_ = std::thread([lines] {
      char rest[4096];
      while (fgets(rest, sizeof rest, lines) != nullptr) {
      }
      fclose(lines);
    });
  }
  ~ServerProcess() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
    drain_.join();
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& target() const { return target_; }
  // VmRSS.
  int64_t MemoryKib() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; status >> word;) {
      int64_t kib = 0;
      if (word == "VmRSS:" && status >> kib) return kib;
    }
    return -1;
  }
  // Processor time of all its threads so far.
  double CpuSeconds() const {
    clockid_t clock = 0;
    timespec time{};
    if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) std::abort();
    return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
  }

 private:
  pid_t pid_;
  std::string target_;
  std::thread drain_;
};

}  // namespace rivulet
