// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

#include <cstdlib>

namespace rivulet {

std::string SourcePath(std::string_view path) {
  const char* given = std::getenv("RIVULET_SOURCE_DIR");
  return std::string(given != nullptr ? given : RIVULET_SOURCE_DIR).append("/").append(path);
}

std::string ProgramPath(std::string_view name) {
  return std::string(RIVULET_BIN_DIR "/").append(name);
}

}  // namespace rivulet
