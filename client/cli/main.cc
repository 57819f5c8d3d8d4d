// SPDX-License-Identifier: Apache-2.0
// The `rivulet` command. Results go to stdout. stderr gets one text: the summary of a command that
// succeeds, or the error line of a command that fails.
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/options/options.h"
#include "client/cli/output/exit_code.h"
#include "google/protobuf/stubs/logging.h"
#include "server/base/leave_behind.h"

namespace rivulet {
namespace {

// gRPC's message for an exceeded deadline names neither the call nor the deadline.
absl::StatusOr<std::string> NameDeadline(absl::StatusOr<std::string> summary,
                                         std::optional<double> seconds) {
  if (!absl::IsDeadlineExceeded(summary.status()) || !seconds.has_value()) return summary;
  return absl::DeadlineExceededError(absl::StrCat("no end within --deadline ", *seconds, " s"));
}

struct Runner {
  template <typename Options>
  absl::StatusOr<std::string> operator()(const Options& options) const {
    return RunCommand(options);
  }
  absl::StatusOr<std::string> operator()(const ShowText& show) const {
    if (absl::Status status = WriteOut(show.text); !status.ok()) return status;
    return std::string();
  }
  absl::StatusOr<std::string> operator()(const GenerateOptions& options) const {
    return NameDeadline(RunCommand(options), options.deadline_seconds);
  }
  absl::StatusOr<std::string> operator()(const HealthOptions& options) const {
    return NameDeadline(RunCommand(options), options.deadline_seconds);
  }
};

absl::StatusOr<std::string> Run(const std::vector<std::string>& args) {
  // Our code throws nothing; a library may, for example when out of memory.
  try {
    absl::StatusOr<Command> command = ParseCommandLine(args);
    if (!command.ok()) return command.status();
    return std::visit(Runner(), *command);
  } catch (const std::exception& exception) {
    return absl::InternalError(absl::StrCat("unexpected: ", exception.what()));
  }
}

// Opens the standard descriptors that the caller has closed. Otherwise gRPC's descriptors would get
// their numbers, and be used as stdin, stdout or stderr. The replacement cannot be read (stdin) or
// written (stdout), so that a command which needs it fails.
void OpenStandardFds() {
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int fd = 0; fd < 3; ++fd) {
    // open() takes the lowest number that is free.
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF && open("/dev/null", kModes[fd]) != fd) {
      std::_Exit(kExitBadInput);
    }
  }
}

// Runs before the initializers of the libraries: gRPC's already open descriptors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const open_standard_fds)() = OpenStandardFds;

int Main(const std::vector<std::string>& args) {
  LeaveOpenSslBehind();
  // Without this, the logs of protobuf and gRPC would appear beside the error line. A user who sets
  // GRPC_VERBOSITY gets gRPC's log.
  google::protobuf::SetLogHandler(nullptr);
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::StatusOr<std::string> summary = Run(args);
  if (!summary.ok()) {
    std::fprintf(stderr, "%s\n", ErrorLine(summary.status()).c_str());
    return ExitCodeOf(summary.status());
  }
  if (!summary->empty()) std::fprintf(stderr, "%s\n", summary->c_str());
  return kExitOk;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  return rivulet::Main(std::vector<std::string>(argv + 1, argv + argc));
}
