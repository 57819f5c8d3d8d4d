// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/worker/long_strings.h"

#include <cstdlib>

#include "server/constraints/messages.h"

namespace rivulet {
namespace {

constexpr long kPiece = 64;

std::string Regex(const std::string& text) { return "Regex(\"" + text + "\", json_string=true)"; }

}  // namespace

std::string WithLongStrings(std::string ebnf) {
  const std::string begin = std::string("Regex(\"") + kLongString;
  std::string piece;
  size_t at = 0;
  while ((at = ebnf.find(begin, at)) != std::string::npos) {
    char* read = ebnf.data() + at + begin.size();
    const long least = strtol(read, &read, 10), most = strtol(read, &read, 10);
    const auto from = static_cast<size_t>(++read - ebnf.data());  // behind a space
    const size_t end = ebnf.find('"', from);
    const std::string one = ebnf.substr(from, end - from);
    piece = "\nlong_piece ::= " + Regex(one + "{" + std::to_string(kPiece) + "}") + "\n";
    std::string rule = Regex(one + "{" + std::to_string(least % kPiece) + ",}");
    if (least >= kPiece) rule = "long_piece{" + std::to_string(least / kPiece) + "} " + rule;
    ebnf.replace(at, ebnf.find('\n', at) - at, rule);
    if (most < 0) continue;
    const size_t name_end = ebnf.rfind(" ::= ", at);
    ebnf.insert(name_end, "[max_chars=" + std::to_string(most) + "]");
  }
  return ebnf + piece;
}

}  // namespace rivulet
