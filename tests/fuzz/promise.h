// SPDX-License-Identifier: Apache-2.0
// Reports a broken promise of a fuzz target, and ends the process so that the fuzzer keeps the
// input.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"

// The entry point that libFuzzer and replay_main.cc call.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace rivulet::fuzz {

inline void Promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Checks that an error is one line of printable text.
inline void PromiseOneLine(const absl::Status& status) {
  Promise(!status.message().empty(), "an error has a message");
  for (const char c : status.message()) {
    Promise(static_cast<unsigned char>(c) >= ' ', "a message is one line");
  }
}

}  // namespace rivulet::fuzz
