// SPDX-License-Identifier: Apache-2.0
#include "client/cli/image/half_blocks.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr int kMostRows = 40;  // of pixels

// "R;G;B" of a pixel; black below the image.
std::string Colour(const std::vector<int32_t>& image, const ImageShape& shape, int y, int x) {
  if (y >= shape.height) return "0;0;0";
  const auto value = [&](int channel) {
    const int used = shape.channels == 3 ? channel : 0;
    const auto at =
        (static_cast<size_t>(y) * static_cast<size_t>(shape.width) + static_cast<size_t>(x)) *
            static_cast<size_t>(shape.channels) +
        static_cast<size_t>(used);
    return static_cast<int>(ToByte(image[at], shape.num_levels));
  };
  return absl::StrCat(value(0), ";", value(1), ";", value(2));
}

}  // namespace

std::vector<std::string> HalfBlocks(std::span<const std::vector<int32_t>> images,
                                    const ImageShape& shape, int columns) {
  const size_t shown = std::min(images.size(), static_cast<size_t>(columns / (shape.width + 1)));
  if (shown == 0 || shape.height > kMostRows) return {};
  std::vector<std::string> lines;
  for (int y = 0; y < shape.height; y += 2) {
    std::string line;
    for (size_t i = 0; i < shown; ++i) {
      for (int x = 0; x < shape.width; ++x) {
        // The upper half block: foreground above, background below.
        absl::StrAppend(&line, "\x1b[38;2;", Colour(images[i], shape, y, x), ";48;2;",
                        Colour(images[i], shape, y + 1, x), "m\u2580");
      }
      absl::StrAppend(&line, "\x1b[0m ");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace rivulet
