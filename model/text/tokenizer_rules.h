// SPDX-License-Identifier: Apache-2.0
// The rules for reading tokenizer.json and the files beside it: each request of a file is applied,
// or refused by name, never ignored.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/base/json_reader.h"

namespace rivulet {

inline constexpr JsonRules kTokenizerRules = {.invalid = "INVALID_TOKENIZER",
                                              .unsupported = "UNSUPPORTED_TOKENIZER"};

// The member `type`, "" if it is not a string; and the error that it is not one of `supported`.
inline absl::string_view TypeOf(const JsonValue& value) {
  const JsonValue* type = value.Find("type");
  return type != nullptr && type->kind == JsonValue::Kind::kString ? absl::string_view(type->text)
                                                                   : "";
}
inline absl::Status UnsupportedType(const JsonValue& value, absl::string_view path,
                                    absl::string_view supported) {
  const JsonValue* type = value.Find("type");
  return kTokenizerRules.Unsupported(absl::StrCat(path, ".type"), "is ",
                                     type == nullptr ? "missing" : Describe(*type),
                                     "; supported: ", supported);
}

}  // namespace rivulet
