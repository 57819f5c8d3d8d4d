// SPDX-License-Identifier: Apache-2.0
// Images of a model as one PNG file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rivulet {

// Shape of every image; values are 0 to num_levels - 1 in raster order, channels interleaved.
struct ImageShape {
  int height = 0, width = 0, channels = 0;
  int num_levels = 0;

  int64_t values() const { return int64_t{height} * width * channels; }
};

// A value as a byte: 0 is black, num_levels - 1 is white; values outside are clipped.
uint8_t ToByte(int32_t value, int num_levels);

// OK if images of this shape can be in a PNG: 1 channel is gray, 3 are RGB. Errors:
// INVALID_ARGUMENT.
absl::Status CheckPngShape(const ImageShape& shape);

// OK if `images` of this shape fit into a grid of `columns`. Errors: INVALID_ARGUMENT.
absl::Status CheckPngGrid(const ImageShape& shape, int64_t images, int columns);

// Writes `images`, each [shape.values()], row by row in a grid of `columns`, one pixel between
// neighbours. The file appears whole or not at all; a symlink stays and its target is replaced.
// REQUIRES: CheckPngShape(shape) is OK. Errors: those of CheckPngGrid and CheckWritable.
absl::Status WritePngGrid(std::span<const std::vector<int32_t>> images, const ImageShape& shape,
                          int columns, const std::string& path);

}  // namespace rivulet
