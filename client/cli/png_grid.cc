// SPDX-License-Identifier: Apache-2.0
#include "client/cli/png_grid.h"

#include <fcntl.h>
#include <png.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr uint8_t kGap = 64;  // between images: neither their black nor their white

absl::Status CannotWrite(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be written: ", why));
}

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

// A file that is there may be a device or a pipe, which a rename would put away.
struct Place {
  std::string path;    // without symlinks, where a file is there
  mode_t mode = 0666;  // of the file that is there
};

absl::StatusOr<Place> FindPlace(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    if (errno != ENOENT) return CannotWrite(path, std::strerror(errno));
    if (lstat(path.c_str(), &found) == 0) return CannotWrite(path, "a symlink to nothing");
    return Place{path};
  }
  if (S_ISDIR(found.st_mode)) return CannotWrite(path, "a directory");
  if (!S_ISREG(found.st_mode)) return CannotWrite(path, "not a regular file");
  if (access(path.c_str(), W_OK) != 0) return CannotWrite(path, std::strerror(errno));
  char* const target = realpath(path.c_str(), nullptr);
  if (target == nullptr) return CannotWrite(path, std::strerror(errno));
  Place place{target, found.st_mode & 0777};
  std::free(target);
  return place;
}

// A new file beside the one to come, so that a rename cannot cross file systems. It goes away with
// this object unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const Place& place) : path_(absl::StrCat(place.path, ".", getpid())) {
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, place.mode);
    made_ = fd >= 0;
    if (made_) file_ = fdopen(fd, "wb");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (made_) std::remove(path_.c_str());
  }
  std::FILE* file() const { return file_; }  // null: errno says why

  // False: errno says why.
  bool RenameTo(const std::string& path) {
    if (std::fclose(std::exchange(file_, nullptr)) != 0) return false;
    made_ = std::rename(path_.c_str(), path.c_str()) != 0;
    return !made_;
  }

 private:
  const std::string path_;
  std::FILE* file_ = nullptr;
  bool made_ = false;
};

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
  constexpr int64_t kMostPixels = 1 << 16;  // of either side: what picture viewers bear
  constexpr int64_t kMostBytes = 1 << 30;   // they are all in memory at once
  if (size.width > kMostPixels || size.height > kMostPixels) {
    return absl::InvalidArgumentError(absl::StrCat("--out: the grid would be ", size.width, " x ",
                                                   size.height, " pixels; at most ", kMostPixels,
                                                   " are allowed; choose other --columns"));
  }
  if (const int64_t bytes = size.width * size.height * shape.channels; bytes > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--out: the grid would hold ", bytes,
                                                   " bytes; at most ", kMostBytes,
                                                   " are allowed; choose a smaller --count"));
  }
  return absl::OkStatus();
}

absl::Status CheckWritable(const std::string& path) {
  const absl::StatusOr<Place> place = FindPlace(path);
  if (!place.ok()) return place.status();
  if (TemporaryFile(*place).file() == nullptr) return CannotWrite(path, std::strerror(errno));
  return absl::OkStatus();
}

absl::Status WritePngGrid(std::span<const std::vector<int32_t>> images, const ImageShape& shape,
                          int columns, const std::string& path) {
  const int64_t num_images = static_cast<int64_t>(images.size());
  if (absl::Status status = CheckPngGrid(shape, num_images, columns); !status.ok()) return status;
  const absl::StatusOr<Place> place = FindPlace(path);
  if (!place.ok()) return place.status();
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
  TemporaryFile temporary(*place);
  if (temporary.file() == nullptr) return CannotWrite(path, std::strerror(errno));
  if (png_image_write_to_stdio(&png, temporary.file(), 0, pixels.data(), 0, nullptr) == 0) {
    return CannotWrite(path, png.message);
  }
  if (!temporary.RenameTo(place->path)) return CannotWrite(path, std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace rivulet
