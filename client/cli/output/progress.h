// SPDX-License-Identifier: Apache-2.0
// A progress display on stderr: on a terminal a bar that leaves nothing behind, elsewhere a line
// now and then, or nothing.
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
  // `line_period`: time between two lines where stderr is no terminal.
  Progress(int64_t total, absl::string_view unit,
           absl::Duration line_period = absl::InfiniteDuration());
  ~Progress();  // erases
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether stderr is a terminal that shows a bar. If not, callers may skip work for it.
  bool visible() const { return visible_; }
  // Whether a call of Update() would print now: a bar at most ten times a second.
  bool due() const;
  // Draws `above` (lines of a picture, may be empty) and the bar under it; or prints one line, in
  // which `above` follows.
  void Update(int64_t done, const std::vector<std::string>& above = {});
  // Clears the display. To be called before other output to the same terminal.
  void Erase();
  int columns() const { return columns_; }

 private:
  const int64_t total_;
  const std::string unit_;
  const absl::Time start_;
  const absl::Duration line_period_;
  bool visible_ = false;
  int columns_ = 80;
  bool shown_ = false;
  int lines_ = 0;  // drawn above the bar's line
  absl::Time drawn_;
};

}  // namespace rivulet
