// SPDX-License-Identifier: Apache-2.0
// What schemas cannot say to the library, but its grammars can (../messages.h, kLongString and
// kNumber).
#pragma once

#include <string>

namespace rivulet {

bool NeedsRewrite(const std::string& schema);

// `ebnf`, the library's grammar of such a schema, with what the markers stand for.
//
// Long strings: the library expands a repetition up to 128 into states, 5 ms each; a longer one is
// a counter, and a mask takes 10 ms. Here an upper bound is a budget of characters, which only the
// last tokens of a string have to look at, and a lower bound is counted in pieces of 64.
//
// Numbers: the library writes 0.1 as 0.10000000000000001.
std::string Rewrite(std::string ebnf);

}  // namespace rivulet
