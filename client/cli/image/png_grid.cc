// SPDX-License-Identifier: Apache-2.0
#include "client/cli/image/png_grid.h"

#include <png.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/output/output_file.h"

namespace rivulet {
namespace {

constexpr uint8_t kGap = 64;  // gray of the gap between images: neither black nor white

struct GridSize {
  int64_t across, down;   // images
  int64_t width, height;  // pixels
};

GridSize SizeOf(const ImageShape& shape, int64_t images, int columns) {
  GridSize size = {};
  size.across = std::min<int64_t>(columns, images);
  size.down = (images + size.across - 1) / size.across;
  size.width = size.across * (shape.width + 1) - 1;
  size.height = size.down * (shape.height + 1) - 1;
  return size;
}

}  // namespace

uint8_t ToByte(int32_t value, int num_levels) {
  const int64_t top = std::max(num_levels - 1, 1);
  const int64_t clipped = std::clamp<int64_t>(value, 0, top);
  return static_cast<uint8_t>((clipped * 255 + top / 2) / top);
}

absl::Status CheckPngShape(const ImageShape& shape) {
  if (shape.channels == 1 || shape.channels == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--out: the model's images have ", shape.channels,
                                                 " channels; a PNG holds 1 (gray) or 3 (RGB)"));
}

absl::Status CheckPngGrid(const ImageShape& shape, int64_t images, int columns) {
  const GridSize size = SizeOf(shape, images, columns);
  constexpr int64_t kMostPixels = 1 << 16;  // of either side: the limit of common picture viewers
  constexpr int64_t kMostBytes = 1 << 30;   // all pixels are in memory at once
  if (size.width > kMostPixels || size.height > kMostPixels) {
    return absl::InvalidArgumentError(absl::StrCat("--out: the grid would be ", size.width, " x ",
                                                   size.height, " pixels; at most ", kMostPixels,
                                                   " are possible; choose other --columns"));
  }
  if (const int64_t bytes = size.width * size.height * shape.channels; bytes > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--out: the grid would hold ", bytes,
                                                   " bytes; at most ", kMostBytes,
                                                   " are possible; choose a smaller --count"));
  }
  return absl::OkStatus();
}

absl::Status WritePngGrid(std::span<const std::vector<int32_t>> images, const ImageShape& shape,
                          int columns, const std::string& path) {
  const int64_t num_images = static_cast<int64_t>(images.size());
  if (absl::Status status = CheckPngGrid(shape, num_images, columns); !status.ok()) return status;
  OutputFile file(path);
  if (absl::Status status = file.Open(); !status.ok()) return status;
  const GridSize size = SizeOf(shape, num_images, columns);
  std::vector<uint8_t> pixels(static_cast<size_t>(size.width * size.height * shape.channels), kGap);
  for (int64_t i = 0; i < num_images; ++i) {
    const std::vector<int32_t>& image = images[static_cast<size_t>(i)];
    const int64_t left = i % size.across * (shape.width + 1);
    const int64_t top = i / size.across * (shape.height + 1);
    const int64_t row_values = int64_t{shape.width} * shape.channels;
    for (int64_t j = 0; j < shape.values(); ++j) {
      const int64_t row = top + j / row_values;
      pixels[static_cast<size_t>((row * size.width + left) * shape.channels + j % row_values)] =
          ToByte(image[static_cast<size_t>(j)], shape.num_levels);
    }
  }
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(size.width);
  png.height = static_cast<png_uint_32>(size.height);
  png.format = shape.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  if (png_image_write_to_stdio(&png, file.file(), 0, pixels.data(), 0, nullptr) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be written: ", png.message));
  }
  return file.Commit();
}

}  // namespace rivulet
