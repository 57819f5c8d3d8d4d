// SPDX-License-Identifier: Apache-2.0
// RIVULET_TARGET and RIVULET_MODEL in the environment: defaults of --target and --model-name.
// RIVULET_KEY is not read here, so that no message can show it: see OpenTarget. RIVULET_PYTHON
// names the interpreter of chat templates and of `rivulet serve`.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace rivulet {

// A command line with the options that the environment adds.
struct CompletedArgs {
  std::vector<std::string> args;
  std::vector<std::string> added;  // "--target=... (RIVULET_TARGET)", for messages
};

// Adds --target=RIVULET_TARGET to a command that talks to a server and names neither --target nor
// --model, and --model-name=RIVULET_MODEL to a command that then needs a model and names none.
// `models load`, `models unload` and `log-level` talk to another address, so nothing is added to
// them. An empty variable counts as unset.
CompletedArgs WithEnvironment(std::span<const std::string> args);

// The interpreters to try, in order. Only the one that RIVULET_PYTHON names, where it is set; else
// that of the virtual environment `gateway` beside the programs' folder, where there is one,
// `python3` in the PATH, and /usr/bin/python3.
std::vector<std::string> Pythons();

}  // namespace rivulet
