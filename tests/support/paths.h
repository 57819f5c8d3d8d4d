// SPDX-License-Identifier: Apache-2.0
// Paths of this checkout and of the programs that were built from it, for tests and benchmarks.
// Only paths.cc is compiled with these folders: an absolute path in the command line of every test
// would keep ccache from sharing their objects between two checkouts.
#pragma once

#include <string>
#include <string_view>

namespace rivulet {

// `path` is relative to the checkout: the folder RIVULET_SOURCE_DIR (environment variable), or the
// folder in which this was compiled.
std::string SourcePath(std::string_view path);
// A program of the build, such as rivulet-server.
std::string ProgramPath(std::string_view name);

}  // namespace rivulet
