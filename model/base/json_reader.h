// SPDX-License-Identifier: Apache-2.0
// JsonReader: typed access to the members of one JSON object of a file, with errors that name the
// member's path, its value and the allowed values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {

// The rules of a kind of file for missing and unknown members, and the reasons of errors. Errors
// are INVALID_ARGUMENT, with the message "PATH WHAT" and the path as field.
struct JsonRules {
  absl::string_view invalid;      // the reason if a member is missing or breaks a rule
  absl::string_view unsupported;  // the reason if only other programs support it; "": `invalid`
  bool null_is_missing = true;
  bool unknown_may_be_off = false;   // an unknown member may be null or false
  bool unknown_may_be_null = false;  // it may be null

  template <typename... Parts>
  absl::Status Invalid(absl::string_view path, const Parts&... what) const {
    return ErrorOf(invalid, path, absl::StrCat(what...));
  }
  template <typename... Parts>
  absl::Status Unsupported(absl::string_view path, const Parts&... what) const {
    return ErrorOf(unsupported.empty() ? invalid : unsupported, path, absl::StrCat(what...));
  }

 private:
  static absl::Status ErrorOf(absl::string_view reason, absl::string_view path,
                              absl::string_view what);
};

// A getter that fails does not change *out. If the member is missing, it sets `fallback`, or fails
// without one. Borrows rules and object. Thread: one.
class JsonReader {
 public:
  using Kind = JsonValue::Kind;
  using ItemAction = absl::FunctionRef<absl::Status(const JsonValue& item, absl::string_view path)>;
  using Names = std::initializer_list<absl::string_view>;

  // `path` is the path of the object, "" for the object of a whole file. Fails if `value` is no
  // object or, unless `known` is empty, if it has a member that is not in `known`.
  static absl::StatusOr<JsonReader> Of(const JsonRules& rules, const JsonValue& value,
                                       absl::string_view path, Names known = {});

  // Null if it is missing.
  const JsonValue* Find(absl::string_view name);
  // Which of two names is present; `name` if neither is, and an error if both are.
  absl::StatusOr<absl::string_view> Spelling(absl::string_view name, absl::string_view other);
  // Null if it is missing and `may_miss`.
  absl::StatusOr<const JsonValue*> Get(absl::string_view name, Kind kind, bool may_miss = false);
  absl::StatusOr<JsonReader> Object(absl::string_view name, Names known = {});
  // Calls `action` with every item of an array, in order, until a call fails.
  absl::Status ForEach(absl::string_view name, ItemAction action);

  absl::Status Bool(absl::string_view name, bool* out, std::optional<bool> fallback = std::nullopt);
  absl::Status Text(absl::string_view name, std::string* out);
  absl::Status Int(absl::string_view name, int64_t min, int64_t max, int* out,
                   std::optional<int> fallback = std::nullopt);
  // An integer that may be null.
  absl::Status Int(absl::string_view name, int64_t min, int64_t max, std::optional<int>* out);
  // A number above 0 that float32 can hold: 1e-60 and 1e60 are errors.
  template <typename T>
  absl::Status Positive(absl::string_view name, T* out,
                        std::type_identity_t<std::optional<T>> fallback = std::nullopt) {
    return Number(name, /*zero_allowed=*/false, out, fallback);
  }
  // Positive, or 0.
  template <typename T>
  absl::Status NotNegative(absl::string_view name, T* out) {
    return Number<T>(name, /*zero_allowed=*/true, out, std::nullopt);
  }
  // The value that `choices` has for the text; `out` may be null.
  template <typename T>
  absl::Status Choice(absl::string_view name,
                      std::initializer_list<std::pair<absl::string_view, T>> choices, T* out,
                      std::type_identity_t<std::optional<T>> fallback = std::nullopt) {
    std::vector<absl::string_view> texts;
    for (const auto& choice : choices) texts.push_back(choice.first);
    RIVULET_ASSIGN_OR_RETURN(const std::optional<size_t> chosen,
                             Chosen(name, texts, fallback.has_value()));
    if (out != nullptr) *out = chosen.has_value() ? choices.begin()[*chosen].second : *fallback;
    return absl::OkStatus();
  }
  // Fails as unsupported unless it is missing or in `supported`, a list with ", " between: true,
  // false or texts in quotes, as in the file; "null": no value is supported.
  absl::Status Only(absl::string_view name, absl::string_view supported);

  // Declares members that are allowed although no getter asks for them.
  void Known(Names names) { asked_.insert(names.begin(), names.end()); }
  // Fails if there is a member that is not known and that no getter has asked for. Call last.
  absl::Status CheckNoOthers() const;

  // "path.name".
  std::string PathOf(absl::string_view name) const;
  // Errors about the member: "path.name WHAT".
  template <typename... Parts>
  absl::Status Invalid(absl::string_view name, const Parts&... what) const {
    return rules_->Invalid(PathOf(name), what...);
  }
  template <typename... Parts>
  absl::Status Unsupported(absl::string_view name, const Parts&... what) const {
    return rules_->Unsupported(PathOf(name), what...);
  }

 private:
  using Fits = absl::FunctionRef<bool(const JsonValue& value)>;

  JsonReader(const JsonRules& rules, const JsonValue& object, absl::string_view path)
      : rules_(&rules), object_(&object), path_(path) {}

  absl::StatusOr<const JsonValue*> Get(absl::string_view name, absl::string_view allowed,
                                       bool may_miss, Fits fits);
  absl::StatusOr<std::optional<size_t>> Chosen(absl::string_view name,
                                               const std::vector<absl::string_view>& texts,
                                               bool may_miss);
  absl::StatusOr<const JsonValue*> GetNumber(absl::string_view name, bool zero_allowed,
                                             bool may_miss);
  template <typename T>
  absl::Status Number(absl::string_view name, bool zero_allowed, T* out,
                      std::optional<T> fallback) {
    RIVULET_ASSIGN_OR_RETURN(const JsonValue* value,
                             GetNumber(name, zero_allowed, fallback.has_value()));
    *out = value == nullptr ? *fallback : static_cast<T>(value->number);
    return absl::OkStatus();
  }

  const JsonRules* rules_;
  const JsonValue* object_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace rivulet
