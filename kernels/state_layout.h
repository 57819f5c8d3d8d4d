// SPDX-License-Identifier: Apache-2.0
// How the recurrent state of a model of kind "linear" lies in memory, on every backend and in
// snapshots of version 1. model/state_parts.h has the other kinds.
//
// One slot is one contiguous array of float32. Per layer, in order:
//   S [heads][features][value_dim]   then   z [heads][features]
// Each of the two arrays begins 16-byte aligned (padding floats are zero); the slot itself is
// padded to 64 bytes so that consecutive slots start on cache lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::kernels {

struct StateLayout {
  int layers = 0;
  int heads = 0;
  int features = 0;   // key features a head, see KeyFeatures()
  int value_dim = 0;  // values a head

  static constexpr size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

  // Floats of S of one head, of S and z of one layer (padded to 4 floats), and of a whole slot.
  constexpr size_t s_floats_per_head() const { return size_t(features) * size_t(value_dim); }
  constexpr size_t s_floats() const { return RoundUp(size_t(heads) * s_floats_per_head(), 4); }
  constexpr size_t z_floats() const { return RoundUp(size_t(heads) * size_t(features), 4); }
  constexpr size_t floats_per_layer() const { return s_floats() + z_floats(); }
  constexpr size_t floats_per_slot() const {
    return RoundUp(size_t(layers) * floats_per_layer(), 16);
  }
  constexpr size_t bytes_per_slot() const { return floats_per_slot() * sizeof(float); }

  // Offsets in floats from the beginning of a slot.
  constexpr size_t s_offset(int layer, int head) const {
    return size_t(layer) * floats_per_layer() + size_t(head) * s_floats_per_head();
  }
  constexpr size_t z_offset(int layer, int head) const {
    return size_t(layer) * floats_per_layer() + s_floats() + size_t(head) * size_t(features);
  }
};

}  // namespace rivulet::kernels
