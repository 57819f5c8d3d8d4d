// SPDX-License-Identifier: Apache-2.0
#include "model/state_parts.h"

#include <algorithm>
#include <utility>

#include "kernels/state_layout.h"

namespace rivulet {

StateParts::StateParts(int layers, std::vector<StatePart> list) : parts(std::move(list)) {
  constexpr size_t kAlignment = 16, kFloat = sizeof(float);
  for (StatePart& part : parts) {
    part.offset = floats_per_layer;
    size_t bytes = part.element_bytes;
    for (const size_t n : part.shape) bytes *= n;
    part.floats = kernels::StateLayout::RoundUp(bytes, kAlignment) / kFloat;
    floats_per_layer += part.floats;
  }
  floats_per_slot = kernels::StateLayout::RoundUp(size_t(layers) * floats_per_layer, 16);
}

const StatePart* StateParts::Find(absl::string_view name) const {
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.name == name; });
  return found == parts.end() ? nullptr : &*found;
}

}  // namespace rivulet
