// SPDX-License-Identifier: Apache-2.0
// print_masks FILE: which tokens may follow, for tests that compare us with others. FILE is an RWKV
// World vocabulary; its id 0 ends a text.
//   stdin   lines of JSON: a string is a schema, of which a text begins; an object is a structural
//           tag, of which a text begins; a list are tokens that were written
//   stdout  a line for each: the allowed tokens, one bit each, as 32-bit words in hex; "end";
//           "dead end"; "error MESSAGE"
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "model/text/world_vocabulary.h"
#include "nlohmann/json.hpp"
#include "server/constraints/grammars.h"

namespace rivulet {
namespace {

// A text of a grammar.
struct Written {
  std::shared_ptr<ConstraintGrammar> grammar;
  std::unique_ptr<ConstraintMatcher> matcher;
};

absl::Status Begin(const nlohmann::ordered_json& said, ConstraintCompiler* compiler,
                   Written* text) {
  Constraint constraint;
  const bool schema = said.is_string();
  constraint.kind = schema ? Constraint::Kind::kJsonSchema : Constraint::Kind::kStructuralTag;
  constraint.text = schema ? said.get<std::string>() : said.dump();
  const absl::StatusOr<Grammar> grammar = GrammarOf(constraint);
  if (!grammar.ok()) return grammar.status();
  text->matcher.reset();
  text->grammar = compiler->Compile(*grammar, "");
  while (!text->grammar->status()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!text->grammar->status()->ok()) return *text->grammar->status();
  text->matcher = text->grammar->NewMatcher({.end_tokens = {0}});
  return absl::OkStatus();
}

std::string Step(const std::vector<int32_t>& tokens, ConstraintMatcher* matcher) {
  using Kind = ConstraintStep::Kind;
  matcher->Push(tokens);
  while (matcher->step() == nullptr) std::this_thread::yield();
  const ConstraintStep& step = *matcher->step();
  if (step.kind == Kind::kFailed) return "error " + std::string(step.status.message());
  if (step.kind != Kind::kChoice) return step.kind == Kind::kEnd ? "end" : "dead end";
  std::string hex;
  for (const uint32_t word : step.mask) absl::StrAppendFormat(&hex, "%08x", word);
  return hex;
}

int PrintMasks(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string vocabulary((std::istreambuf_iterator<char>(file)),
                               std::istreambuf_iterator<char>());
  const auto tokenizer = ParseWorldVocabulary(vocabulary);
  if (!tokenizer.ok()) return std::cerr << tokenizer.status() << '\n', 1;
  const auto compiler = CreateGrammars(**tokenizer, (*tokenizer)->size(), {});
  Written text;
  for (std::string line; std::getline(std::cin, line);) {
    const auto said = nlohmann::ordered_json::parse(line);
    const bool begins = !said.is_array();
    const absl::Status status = begins ? Begin(said, compiler.get(), &text) : absl::OkStatus();
    std::vector<int32_t> tokens;
    if (!begins) tokens = said.get<std::vector<int32_t>>();
    std::cout << (status.ok() ? Step(tokens, text.matcher.get())
                              : "error " + std::string(status.message()))
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  if (argc == 2) return rivulet::PrintMasks(argv[1]);
  std::cerr << "usage: print_masks FILE\n";
  return 2;
}
