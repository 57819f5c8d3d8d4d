// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

template <typename T>
void Append(T value, std::string* out) {
  char buffer[64];
  const std::to_chars_result result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  out->append(buffer, result.ptr);
}

}  // namespace

double Perplexity(double nll_nats, int64_t num_scored) {
  if (num_scored <= 0) return std::numeric_limits<double>::quiet_NaN();
  return std::exp(nll_nats / static_cast<double>(num_scored));
}

void AppendNumber(float value, std::string* out) { Append(value, out); }
void AppendNumber(double value, std::string* out) { Append(value, out); }
void AppendNumber(int64_t value, std::string* out) { Append(value, out); }

absl::StatusOr<std::vector<int64_t>> ParseIntegers(absl::string_view text, absl::string_view what,
                                                   int64_t min, int64_t max) {
  std::vector<int64_t> values;
  if (absl::StripAsciiWhitespace(text).empty()) return values;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int64_t value = 0;
    const char* const end = entry.data() + entry.size();
    const std::from_chars_result result = std::from_chars(entry.data(), end, value);
    if (entry.empty() || result.ptr != end || result.ec != std::errc() || value < min ||
        value > max) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": entry ", values.size(),
                                                     " must be an integer from ", min, " to ", max,
                                                     "; got \"", OneLine(entry), "\""));
    }
    values.push_back(value);
  }
  return values;
}

std::vector<size_t> CodePointOffsets(absl::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsUtf8Tail(text[i])) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

std::string OneLine(absl::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return line;
}

std::string Compact(double value) {
  for (const char* const unit : {"", "k", "M", "G"}) {
    if (std::abs(value) < 999.5) return absl::StrFormat("%.3g%s", value, unit);
    value /= 1000;
  }
  return absl::StrFormat("%.3gT", value);
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      text += row[i];
      if (!last) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += "\n";
  }
  return text;
}

}  // namespace rivulet
