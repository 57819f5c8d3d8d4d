// SPDX-License-Identifier: Apache-2.0
// An object of a JSON text of which every member must be known: what a file asks for is done or
// refused by name, never passed over.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"

namespace rivulet {

// What is done with an item of an array, whose own path is given.
using ItemAction = absl::FunctionRef<absl::Status(const JsonValue& item, absl::string_view path)>;

// Errors of all calls: INVALID_ARGUMENT with the member's path as field; reasons
// INVALID_TOKENIZER (wrong type or value, missing) and UNSUPPORTED_TOKENIZER (known to others).
// Lifetime: the JsonValue must outlive it. Thread: const calls from any thread.
class JsonFields {
 public:
  // `path` is the object's own. Fails where `value` is no object or has a member outside `known`.
  static absl::StatusOr<JsonFields> Of(const JsonValue& value, absl::string_view path,
                                       std::initializer_list<absl::string_view> known);

  // The member; null where it is missing or null in the text.
  const JsonValue* Find(absl::string_view key) const;
  absl::StatusOr<const JsonValue*> Required(absl::string_view key) const;

  absl::StatusOr<bool> Bool(absl::string_view key, bool fallback) const;
  absl::StatusOr<std::string> Text(absl::string_view key) const;
  // 0 <= value <= most.
  absl::StatusOr<int32_t> Whole(absl::string_view key, int32_t most) const;
  // Does `action` with every item of an array, in order, until one fails. Fails where it is no
  // array.
  absl::Status ForEach(absl::string_view key, ItemAction action) const;
  // Fails unless the member is missing or null.
  absl::Status RefuseUnlessNull(absl::string_view key) const;

  std::string PathOf(absl::string_view key) const;

 private:
  JsonFields(const JsonValue* value, absl::string_view path) : value_(value), path_(path) {}

  const JsonValue* value_;
  std::string path_;
};

// As JsonFields::ForEach, of a value that is at hand.
absl::Status ForEachItem(const JsonValue& list, absl::string_view path, ItemAction action);

// "path" is what it should not be: the errors above.
absl::Status InvalidTokenizer(absl::string_view path, absl::string_view what);
absl::Status UnsupportedTokenizer(absl::string_view path, absl::string_view what);

// The member `type`, "" where it is no string; and the error that it is not one of `supported`.
absl::string_view TypeOf(const JsonValue& value);
absl::Status UnsupportedType(const JsonValue& value, absl::string_view path,
                             absl::string_view supported);

}  // namespace rivulet
