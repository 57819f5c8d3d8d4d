// SPDX-License-Identifier: Apache-2.0
// The `rivulet` command. Results go to stdout. stderr gets the summary of a command that succeeds,
// or the one line of one that fails.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/exit_code.h"
#include "client/cli/options.h"

namespace rivulet {
namespace {

struct Runner {
  absl::StatusOr<std::string> operator()(const ShowText& show) const {
    if (absl::Status status = WriteOut(show.text); !status.ok()) return status;
    return std::string();
  }
  absl::StatusOr<std::string> operator()(const GenerateOptions& options) const {
    return RunGenerate(options);
  }
  absl::StatusOr<std::string> operator()(const ScoreOptions& options) const {
    return RunScore(options);
  }
  absl::StatusOr<std::string> operator()(const ModelsOptions& options) const {
    return RunModels(options);
  }
  absl::StatusOr<std::string> operator()(const HealthOptions& options) const {
    return RunHealth(options);
  }
};

absl::StatusOr<std::string> Run(const std::vector<std::string>& args) {
  // Ours throws nothing; a library may, for example when memory ends.
  try {
    absl::StatusOr<Command> command = ParseCommandLine(args);
    if (!command.ok()) return command.status();
    return std::visit(Runner(), *command);
  } catch (const std::exception& exception) {
    return absl::InternalError(absl::StrCat("unexpected: ", exception.what()));
  }
}

int Main(const std::vector<std::string>& args) {
  // gRPC's own log would stand beside the one line; whoever sets the variable wants it.
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
