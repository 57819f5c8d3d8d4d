// SPDX-License-Identifier: Apache-2.0
// FieldReader: typed access to the fields of one JSON object, with errors that name the field's
// path, what it holds and what is allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {

// Every getter returns INVALID_ARGUMENT where the field is missing, has the wrong type or is out of
// range, and leaves *out alone then. Borrows the value. Thread: one.
class FieldReader {
 public:
  // `path` is that of the object itself; "" for the root.
  FieldReader(const JsonValue& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  // "path.name".
  std::string PathOf(absl::string_view name) const {
    return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", name);
  }
  // INVALID_ARGUMENT "path.name is <held>; allowed: <allowed>".
  absl::Status Bad(absl::string_view name, absl::string_view held, absl::string_view allowed) const;

  absl::Status GetInt(absl::string_view name, int64_t min, int64_t max, int* out);
  // A token id or null.
  absl::Status GetOptionalInt(absl::string_view name, int64_t min, int64_t max,
                              std::optional<int32_t>* out);
  absl::Status GetBool(absl::string_view name, bool* out);
  absl::Status GetString(absl::string_view name, std::string* out);
  // A number that float32 can hold: finite, and 0 only where it is 0 in the file. `zero_allowed`
  // says whether 0 is; negative numbers never are.
  absl::Status GetFloat(absl::string_view name, bool zero_allowed, float* out);
  // One of `choices`, as its value; `out` may be null where there is one choice.
  template <typename T>
  absl::Status GetChoice(absl::string_view name,
                         std::initializer_list<std::pair<absl::string_view, T>> choices, T* out) {
    std::string text;
    std::vector<std::string> allowed;
    for (const auto& choice : choices) allowed.push_back(Quoted(choice.first));
    const std::string allowed_text = absl::StrJoin(allowed, " or ");
    RIVULET_RETURN_IF_ERROR(GetText(name, allowed_text, &text));
    for (const auto& choice : choices) {
      if (choice.first == text) {
        if (out != nullptr) *out = choice.second;
        return absl::OkStatus();
      }
    }
    return Bad(name, Quoted(text), allowed_text);
  }
  // A nested object; the result borrows it.
  absl::StatusOr<FieldReader> GetObject(absl::string_view name);

  // INVALID_ARGUMENT for the first field that no getter has asked for. Call last.
  absl::Status CheckNoOthers() const;

 private:
  // The field, or an error that it is missing; notes that it was asked for.
  absl::StatusOr<const JsonValue*> Get(absl::string_view name, absl::string_view allowed);
  absl::Status GetText(absl::string_view name, absl::string_view allowed, std::string* out);

  const JsonValue& object_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace rivulet
