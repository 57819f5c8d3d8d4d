// SPDX-License-Identifier: Apache-2.0
// Strings of a schema that may be long (../messages.h, kLongString).
#pragma once

#include <string>

namespace rivulet {

// `ebnf`, the library's grammar of a schema, with rules for its long strings. The library expands a
// repetition up to 128 into states, 5 ms each; a longer repetition is a counter, and a mask takes
// 10 ms. Here an upper bound is a budget of characters, which only the last tokens of a string
// have to look at, and a lower bound is counted in pieces of 64.
std::string WithLongStrings(std::string ebnf);

}  // namespace rivulet
