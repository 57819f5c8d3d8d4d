// SPDX-License-Identifier: Apache-2.0
// A progress display on stderr that leaves nothing behind, and shows nothing unless stderr is a
// terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rivulet {

// "[=====>    ] 31.4k/50.2k pixels  1.2k/s  0:16 left", fit for `columns` of a terminal. `total` 0:
// unknown.
std::string ProgressLine(int64_t done, int64_t total, absl::string_view unit,
                         absl::Duration elapsed, int columns);

// Thread: one at a time.
class Progress {
 public:
  Progress(int64_t total, absl::string_view unit);
  ~Progress();  // erases
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether the display is visible. If not, callers may skip work for it.
  bool visible() const { return visible_; }
  // Whether a call of Update() would draw now; it draws at most ten times a second.
  bool due() const;
  // Draws `above` (lines of a picture, may be empty) and the bar under it.
  void Update(int64_t done, const std::vector<std::string>& above = {});
  // Clears the display. To be called before other output to the same terminal.
  void Erase();
  int columns() const { return columns_; }

 private:
  const int64_t total_;
  const std::string unit_;
  const absl::Time start_;
  bool visible_ = false;
  int columns_ = 80;
  bool shown_ = false;
  int lines_ = 0;  // drawn above the bar's line
  absl::Time drawn_ = absl::InfinitePast();
};

}  // namespace rivulet
