// SPDX-License-Identifier: Apache-2.0
// Images as text for a terminal: two rows of pixels in a row of characters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/cli/image/png_grid.h"

namespace rivulet {

// Lines that show the first images side by side, up to the width `columns`. No lines if the first
// image does not fit, or if an image has more than 40 rows of pixels. Colours are 24-bit. REQUIRES:
// 1 or 3 channels.
std::vector<std::string> HalfBlocks(std::span<const std::vector<int32_t>> images,
                                    const ImageShape& shape, int columns);

}  // namespace rivulet
