// SPDX-License-Identifier: Apache-2.0
// StateParts: the state of one sequence, as the kind of its model describes it: a list of arrays
// for each layer, and where they lie in a slot. Nobody but the network looks into a part: a slot is
// cleared, copied, read and written as one block of bytes, and a cleared slot is all zeros.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rivulet {

// One array of a layer's state. Its zeros mean "no token yet".
struct StatePart {
  std::string name;           // unique within the list
  std::vector<size_t> shape;  // row-major; any 0: the part is empty
  size_t element_bytes = 4;   // 4: float32
  // In floats, set by StateParts: where it begins in the layer, and how much it takes with padding.
  size_t offset = 0, floats = 0;
};

// Every part begins 16-byte aligned, and a slot is padded to 64 bytes, so that slots side by side
// begin on cache lines. Padding is zero. All layers are alike.
struct StateParts {
  StateParts(int layers, std::vector<StatePart> parts);

  // The part `name`; null: there is none.
  const StatePart* Find(absl::string_view name) const;

  std::vector<StatePart> parts;
  size_t floats_per_layer = 0;
  size_t floats_per_slot = 0;
};

}  // namespace rivulet
