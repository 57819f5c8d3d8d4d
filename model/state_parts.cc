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
    floats_per_layer += kernels::StateLayout::RoundUp(bytes, kAlignment) / kFloat;
  }
  floats_per_slot = kernels::StateLayout::RoundUp(size_t(layers) * floats_per_layer, 16);
}

size_t StateParts::offset(absl::string_view name) const {
  return std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.name == name; })
      ->offset;
}

}  // namespace rivulet
