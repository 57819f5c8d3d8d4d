// SPDX-License-Identifier: Apache-2.0
// Grammars: a ConstraintCompiler whose grammars are processes of rivulet-grammar (messages.h). So a
// grammar that crashes the library, or makes it run away, ends the replies that use it, and nothing
// else.
// Tested by: tests/unit/server/constraints/grammars_test.cc
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/text/text_tokenizer.h"
#include "server/constraints/compiler.h"

namespace rivulet {

struct GrammarsOptions {
  std::string program;        // rivulet-grammar; empty: beside this program
  int max_compiling = 1;      // at a time; tenants take turns
  size_t max_kept = 16;       // compiled grammars that no reply uses; each is a process
  size_t max_processes = 64;  // more grammars wait
};

// For sequences of ids below `vocab_size`; `tokenizer` is borrowed.
std::shared_ptr<ConstraintCompiler> CreateGrammars(const TextTokenizer& tokenizer, int vocab_size,
                                                   const GrammarsOptions& options);

}  // namespace rivulet
