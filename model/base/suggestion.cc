// SPDX-License-Identifier: Apache-2.0
#include "model/base/suggestion.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

// The number of characters to insert, drop or replace, or neighbours to swap, to turn `a` into `b`.
size_t Edits(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> edits(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      edits[i][j] =
          std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + other});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
      }
    }
  }
  return edits[a.size()][b.size()];
}

std::string Nearest(absl::string_view word, const std::vector<std::string>& words) {
  constexpr size_t kLongest = 64;  // of a name
  std::string nearest;
  if (word.size() > kLongest) return nearest;
  size_t fewest = std::numeric_limits<size_t>::max();
  for (const std::string& other : words) {
    const size_t edits = Edits(word, other);
    if (edits * 3 > std::max(word.size(), other.size()) || edits >= fewest) continue;
    fewest = edits;
    nearest = other;
  }
  return nearest;
}

}  // namespace

std::string DidYouMean(const std::vector<std::string>& names) {
  std::string said = absl::StrCat("; did you mean ", names.front());
  for (size_t i = 1; i < names.size(); ++i) {
    absl::StrAppend(&said, i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  return said + "?";
}

std::string Suggestion(absl::string_view word, const std::vector<std::string>& names) {
  const std::string nearest = Nearest(word, names);
  return nearest.empty() ? "" : DidYouMean({nearest});
}

std::string UnknownFlag(const std::vector<std::string>& args,
                        absl::FunctionRef<std::optional<bool>(const std::string&)> takes_value) {
  bool is_value = false;
  for (const std::string& arg : args) {
    const bool is_flag =
        absl::StartsWith(arg, "--") || (arg.size() > 1 && arg[0] == '-' &&
                                        absl::ascii_isalpha(static_cast<unsigned char>(arg[1])));
    if (std::exchange(is_value, false) || !is_flag) continue;
    if (arg == "--") break;
    const std::string flag = arg.substr(0, arg.find('='));
    const std::optional<bool> takes = takes_value(flag);
    if (!takes.has_value()) return flag;
    is_value = flag == arg && *takes;
  }
  return "";
}

}  // namespace rivulet
