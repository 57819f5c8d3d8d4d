// SPDX-License-Identifier: Apache-2.0
#include "client/cli/png_grid.h"

#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr uint8_t kGap = 64;  // between images: neither their black nor their white

// Beside `path`, so that a rename cannot cross file systems.
std::string TemporaryPath(const std::string& path) { return absl::StrCat(path, ".", getpid()); }

absl::Status CannotWrite(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be written: ", why));
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

absl::Status CheckWritable(const std::string& path) {
  const std::string temporary = TemporaryPath(path);
  std::FILE* const file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return CannotWrite(path, std::strerror(errno));
  std::fclose(file);
  std::remove(temporary.c_str());
  return absl::OkStatus();
}

absl::Status WritePngGrid(std::span<const std::vector<int32_t>> images, const ImageShape& shape,
                          int columns, const std::string& path) {
  const int64_t across = std::min<int64_t>(columns, static_cast<int64_t>(images.size()));
  const int64_t down = (static_cast<int64_t>(images.size()) + across - 1) / across;
  const int64_t width = across * (shape.width + 1) - 1;
  const int64_t height = down * (shape.height + 1) - 1;
  constexpr int64_t kMost = 1 << 16;  // of either side: what picture viewers bear
  if (width > kMost || height > kMost) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the grid would be ", width, " x ",
                                                   height, " pixels; at most ", kMost,
                                                   " are allowed; choose other --columns"));
  }
  std::vector<uint8_t> pixels(static_cast<size_t>(width * height * shape.channels), kGap);
  for (int64_t i = 0; i < static_cast<int64_t>(images.size()); ++i) {
    const std::vector<int32_t>& image = images[static_cast<size_t>(i)];
    const int64_t left = i % across * (shape.width + 1), top = i / across * (shape.height + 1);
    const int64_t row_values = int64_t{shape.width} * shape.channels;
    for (int64_t j = 0; j < shape.values(); ++j) {
      const int64_t row = top + j / row_values;
      pixels[static_cast<size_t>((row * width + left) * shape.channels + j % row_values)] =
          ToByte(image[static_cast<size_t>(j)], shape.num_levels);
    }
  }
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(width);
  png.height = static_cast<png_uint_32>(height);
  png.format = shape.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  const std::string temporary = TemporaryPath(path);
  if (png_image_write_to_file(&png, temporary.c_str(), 0, pixels.data(), 0, nullptr) == 0) {
    std::remove(temporary.c_str());
    return CannotWrite(path, png.message);
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    return CannotWrite(path, std::strerror(error));
  }
  return absl::OkStatus();
}

}  // namespace rivulet
