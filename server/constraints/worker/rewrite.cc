// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/worker/rewrite.h"

#include <cstdlib>

#include "server/constraints/messages.h"

namespace rivulet {
namespace {

constexpr long kPiece = 64;

std::string Regex(const std::string& text) { return "Regex(\"" + text + "\", json_string=true)"; }

// The library prints "\u00e9a" as "\xe9a", and reads that as U+0E9A.
void WriteEscapes(std::string* ebnf) {
  for (size_t at = 0; (at = ebnf->find('\\', at)) != std::string::npos; at += 2) {
    if (ebnf->compare(at, 2, "\\x") == 0) ebnf->replace(at, 2, "\\u00");
  }
}

void WriteLongStrings(std::string* ebnf) {
  const std::string begin = std::string("Regex(\"") + kLongString;
  std::string piece;
  size_t at = 0;
  while ((at = ebnf->find(begin, at)) != std::string::npos) {
    char* read = ebnf->data() + at + begin.size();
    const long least = strtol(read, &read, 10), most = strtol(read, &read, 10);
    const auto from = static_cast<size_t>(++read - ebnf->data());  // behind a space
    const std::string one = ebnf->substr(from, ebnf->find('"', from) - from);
    piece = "\nlong_piece ::= " + Regex(one + "{" + std::to_string(kPiece) + "}") + "\n";
    std::string rule = Regex(one + "{" + std::to_string(least % kPiece) + ",}");
    if (least >= kPiece) rule = "long_piece{" + std::to_string(least / kPiece) + "} " + rule;
    ebnf->replace(at, ebnf->find('\n', at) - at, rule);
    if (most < 0) continue;
    ebnf->insert(ebnf->rfind(" ::= ", at), "[max_chars=" + std::to_string(most) + "]");
  }
  *ebnf += piece;
}

void WriteNumbers(std::string* ebnf) {
  const std::string quote = "\\\"", begin = quote + kNumber;  // within a literal
  for (size_t at = 0; (at = ebnf->find(begin, at)) != std::string::npos;) {
    ebnf->erase(at, begin.size());
    ebnf->erase(ebnf->find(quote, at), quote.size());
  }
}

}  // namespace

bool NeedsRewrite(const std::string& schema) {
  const std::string pattern = std::string(R"("pattern":")") + kLongString;
  return schema.find(pattern) != schema.npos || schema.find(kNumber) != schema.npos;
}

std::string Rewrite(std::string ebnf) {
  WriteEscapes(&ebnf);
  WriteLongStrings(&ebnf);
  WriteNumbers(&ebnf);
  return ebnf;
}

}  // namespace rivulet
