// SPDX-License-Identifier: Apache-2.0
// `rivulet serve`: hands over to rivulet.gateway.serve of the Python package rivulet-client, which
// starts rivulet-server and the gateway.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/options/environment.h"
#include "model/base/program.h"

namespace rivulet {
namespace {

// Arguments: the version, the path of rivulet-server, and those of the command. Leaves the current
// directory out of the search, which may have a folder named rivulet.
constexpr char kHandOver[] = R"(
import sys
sys.path = [place for place in sys.path if place]
try:
    from rivulet.gateway import serve
except ImportError as error:
    other = '; its package rivulet is that of PyPI, another project' if error.name == 'rivulet.gateway' else ''
    sys.exit(print(f"rivulet serve: {error}: {sys.executable} lacks the package rivulet-client[gateway]{other}; "
                   "install its wheel there, or set RIVULET_PYTHON to a Python that has it", file=sys.stderr) or 2)
serve.main(sys.argv[1], sys.argv[2], sys.argv[3:])
)";

}  // namespace

absl::StatusOr<std::string> RunCommand(const ServeOptions& options) {
  const std::string server = ProgramFile().replace_filename("rivulet-server");
  if (access(server.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("rivulet serve needs the program ", server, ": ", strerror(errno)));
  }
  int failure = 0;
  for (const std::string& python : Pythons()) {
    std::vector<std::string> words = {python, "-c", kHandOver, RIVULET_VERSION, server};
    words.insert(words.end(), options.arguments.begin(), options.arguments.end());
    std::vector<char*> argv(words.size() + 1);  // the last one is null
    std::transform(words.begin(), words.end(), argv.begin(),
                   [](std::string& word) { return word.data(); });
    execvp(argv[0], argv.data());
    failure = errno;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "rivulet serve needs Python 3.10 or newer with the package rivulet-client[gateway]; ",
      Pythons()[0], ": ", strerror(failure)));
}

}  // namespace rivulet
