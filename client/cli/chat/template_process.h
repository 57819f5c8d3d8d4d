// SPDX-License-Identifier: Apache-2.0
// The process that renders chat templates and divides replies, under limits of time and memory. It
// runs the gateway's client/python/src/rivulet/gateway/worker, which is installed beside the
// programs as share/rivulet/chat_worker.
// Tested by: tests/unit/client/cli/chat/chat_template_test.cc
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rivulet {

// Thread: one. Interpreters: those of Pythons().
class TemplateProcess {
 public:
  enum class Job : char { kChat = 'c', kCheck = 't', kDivide = 'd' };  // the letters of main.py

  TemplateProcess() = default;
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;
  ~TemplateProcess();  // ends the process

  // The result of a job, as JSON. `arguments`: JSON. Starts the process if none runs: at the first
  // job, and after a job that ended the process. Errors: INVALID_ARGUMENT (the worker's, with the
  // parameter as field; CHAT_TEMPLATE_TOO_HARD and RESPONSE_PARSE_TOO_HARD: the job took more than
  // 1 s, 512 MiB or 64 MiB of text, or ended the process); FAILED_PRECONDITION
  // (NO_CHAT_TEMPLATE_ENGINE: there is no Python with jinja2 and regex).
  absl::StatusOr<std::string> Run(Job job, const std::string& arguments);

 private:
  struct Answer {
    char letter = 0;
    std::string bytes;
  };
  absl::Status Start();
  // Returns whether `python` runs the worker; if not, `why` says how it ended.
  bool StartWith(const std::string& python, const std::string& folder, std::string* why);
  // nullopt: the process has ended, or gives no answer.
  std::optional<Answer> Exchange(Job job, const std::string& arguments);
  // Ends the process. Returns how it ended, for a message.
  std::string End();

  std::vector<std::string> pythons_;  // to try; after the first success only the running one
  pid_t pid_ = 0;                     // 0: there is no process
  int socket_ = -1;                   // its stdin and stdout
};

}  // namespace rivulet
