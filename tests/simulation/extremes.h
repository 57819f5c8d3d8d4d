// SPDX-License-Identifier: Apache-2.0
// Extreme 64-bit numbers that clients may send: sums, negations and conversions of them overflow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>

#include "server/engine/request.h"
#include "tests/simulation/choices.h"

namespace rivulet {

// `near`: a number that the result may be added to. The result is never a position, count or limit
// that an engine of the simulation allows.
inline int64_t DrawExtreme(Choices* choices, int64_t near) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  const int64_t extremes[] = {kMax,
                              kMin,
                              kMax - near,
                              kMax - near + (near > 0 ? 1 : 0),
                              kMin + near,
                              int64_t{1} << 62,
                              (int64_t{1} << 32) + near,
                              int64_t{1} << 31,
                              -(int64_t{1} << 31) - 1,
                              -1};
  return extremes[choices->Below(static_cast<int>(std::size(extremes)))];
}

// The same for a 32-bit field.
inline int DrawExtreme32(Choices* choices) {
  return static_cast<int>(std::clamp<int64_t>(DrawExtreme(choices, 0), INT32_MIN, INT32_MAX));
}

// Put an extreme number into a request now and then. Return the reason with which the request must
// be refused at once; empty: none.
inline std::string Spoil(Choices* choices, GenerateSpec* spec) {
  if (!choices->OneIn(30)) return "";
  switch (choices->Below(3)) {
    case 0:
      spec->max_tokens = DrawExtreme(choices, std::ssize(spec->prompt));
      return "MAX_TOKENS_OUT_OF_RANGE";
    case 1:
      spec->num_samples = DrawExtreme32(choices);
      return "NUM_SAMPLES_OUT_OF_RANGE";
    default:
      spec->cache.enabled = true;
      spec->cache.positions = {DrawExtreme(choices, std::ssize(spec->prompt))};
      return "CACHE_POSITION_OUT_OF_RANGE";
  }
}

inline std::string Spoil(Choices* choices, ScoreSpec* spec) {
  if (!choices->OneIn(20)) return "";
  const int64_t extreme = DrawExtreme(choices, std::ssize(spec->tokens));
  if (choices->OneIn(2)) {
    spec->window = extreme;  // a large one is one window
    return extreme < 0 ? "WINDOW_OUT_OF_RANGE" : "";
  }
  spec->output_positions.push_back(extreme);
  return "OUTPUT_POSITION_OUT_OF_RANGE";
}

inline std::string Spoil(Choices* choices, AppendSpec* spec) {
  if (!choices->OneIn(20)) return "";
  spec->output_positions.push_back(DrawExtreme(choices, std::ssize(spec->tokens)));
  return "OUTPUT_POSITION_OUT_OF_RANGE";
}

}  // namespace rivulet
