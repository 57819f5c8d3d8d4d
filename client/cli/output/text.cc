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

namespace rivulet {
namespace {

template <typename T>
void Append(T value, std::string* out) {
  char buffer[64];
  const std::to_chars_result result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  out->append(buffer, result.ptr);
}

// Bytes of the code point that starts at text[i]; 0 if none does.
size_t CodePointBytes(absl::string_view text, size_t i) {
  const auto byte = [&](size_t j) { return static_cast<unsigned char>(text[j]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || i + bytes > text.size()) return 0;
  for (size_t j = i + 1; j < i + bytes; ++j) {
    if ((byte(j) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and values above U+10FFFF.
  const unsigned char second = byte(i + 1);
  if (first == 0xE0 && second < 0xA0) return 0;
  if (first == 0xED && second > 0x9F) return 0;
  if (first == 0xF0 && second < 0x90) return 0;
  if (first == 0xF4 && second > 0x8F) return 0;
  return bytes;
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

size_t FirstInvalidUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t bytes = CodePointBytes(text, i);
    if (bytes == 0) return i;
    i += bytes;
  }
  return i;
}

std::vector<size_t> CodePointOffsets(absl::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) offsets.push_back(i);
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
