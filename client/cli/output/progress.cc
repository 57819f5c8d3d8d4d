// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/output/text.h"

namespace rivulet {

std::string ProgressLine(int64_t done, int64_t total, absl::string_view unit,
                         absl::Duration elapsed, int columns) {
  if (total > 0) done = std::min(done, total);  // seconds pass 100 % while replies are awaited
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-3);
  const double rate = static_cast<double>(done) / seconds;
  if (total <= 0) {
    return absl::StrCat(Compact(static_cast<double>(done)), " ", unit, "  ", Compact(rate), "/s");
  }
  std::string line =
      absl::StrCat(Compact(static_cast<double>(done)), "/", Compact(static_cast<double>(total)),
                   " ", unit, "  ", Compact(rate), "/s");
  if (done > 0) {
    const int64_t left = static_cast<int64_t>(static_cast<double>(total - done) / rate);
    absl::StrAppendFormat(&line, "  %d:%02d left", left / 60, left % 60);
  }
  const int width = std::min(40, columns - static_cast<int>(line.size()) - 4);
  if (width < 5) return line;
  const int full = static_cast<int>(static_cast<double>(width) * static_cast<double>(done) /
                                    static_cast<double>(total));
  const std::string bar = std::string(static_cast<size_t>(std::clamp(full, 0, width)), '=');
  return absl::StrCat("[", bar, std::string(static_cast<size_t>(width) - bar.size(), ' '), "] ",
                      line);
}

Progress::Progress(int64_t total, absl::string_view unit, absl::Duration line_period)
    : total_(total), unit_(unit), start_(absl::Now()), line_period_(line_period) {
  const char* const term = std::getenv("TERM");
  visible_ = isatty(STDERR_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
  winsize size = {};
  if (visible_ && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    columns_ = size.ws_col;
  }
  drawn_ = visible_ ? absl::InfinitePast() : start_;
}

Progress::~Progress() { Erase(); }

bool Progress::due() const {
  return absl::Now() - drawn_ >= (visible_ ? absl::Milliseconds(100) : line_period_);
}

void Progress::Update(int64_t done, const std::vector<std::string>& above) {
  if (!due()) return;
  drawn_ = absl::Now();
  if (!visible_) {
    constexpr int kNoBar = 0;
    std::string line = ProgressLine(done, total_, unit_, drawn_ - start_, kNoBar);
    for (const std::string& more : above) absl::StrAppend(&line, ", ", more);
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  Erase();
  std::string text;
  for (const std::string& line : above) absl::StrAppend(&text, line, "\n");
  absl::StrAppend(&text, ProgressLine(done, total_, unit_, drawn_ - start_, columns_ - 1));
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  lines_ = static_cast<int>(above.size());
  shown_ = true;
}

void Progress::Erase() {
  if (!shown_) return;
  // To the start of the first line drawn, then clear to the end of the screen.
  if (lines_ > 0) std::fprintf(stderr, "\x1b[%dA", lines_);
  std::fputs("\r\x1b[J", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace rivulet
