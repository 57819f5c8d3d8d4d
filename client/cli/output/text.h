// SPDX-License-Identifier: Apache-2.0
// Small conversions between text and numbers, without locale and without loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// exp(nll_nats / num_scored); NaN if `num_scored` is 0.
double Perplexity(double nll_nats, int64_t num_scored);

// Appends the shortest decimal that reads back as the same number. REQUIRES: finite.
void AppendNumber(float value, std::string* out);
void AppendNumber(double value, std::string* out);
void AppendNumber(int64_t value, std::string* out);

// "3,1,4" as integers in [min, max]; "" is the empty list. Errors: INVALID_ARGUMENT naming `what`
// and the entry.
absl::StatusOr<std::vector<int64_t>> ParseIntegers(absl::string_view text, absl::string_view what,
                                                   int64_t min, int64_t max);

// Byte offset of each code point of well-formed `text`, and finally text.size().
std::vector<size_t> CodePointOffsets(absl::string_view text);

// `text` with control characters (newlines too) as spaces: fit for one line.
std::string OneLine(absl::string_view text);

// "12.3k", "4.56M": three significant digits.
std::string Compact(double value);

// "12.5 MiB"
std::string Mebibytes(int64_t bytes);

// Lines with columns as wide as their widest cell, two spaces apart.
std::string Table(const std::vector<std::vector<std::string>>& rows);

}  // namespace rivulet
