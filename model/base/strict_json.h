// SPDX-License-Identifier: Apache-2.0
// Strict JSON for untrusted files: config.json and the header of model.safetensors.
//
// RFC 8259 with more rules: no duplicate key at any depth, no byte order mark, no NUL byte, only
// white space after the value, numbers must be finite as float64, and depth and number of values
// are limited. Nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// One JSON value. Which members count depends on `kind`.
struct JsonValue {
  enum class Kind : uint8_t {
    kNull,
    kBool,
    kInteger,
    kHugeInteger,
    kFloat,
    kString,
    kArray,
    kObject
  };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;  // kInteger; an integer that does not fit is kHugeInteger
  double number = 0;    // kInteger, kHugeInteger and kFloat; always finite
  std::string text;     // kString: the string; kFloat, kHugeInteger: the number as it is spelled
  std::vector<std::string> keys;  // kObject: in the order of the file; keys[i] belongs to items[i]
  std::vector<JsonValue> items;   // kArray, kObject

  bool is_number() const {
    return kind == Kind::kInteger || kind == Kind::kHugeInteger || kind == Kind::kFloat;
  }
  // The member called `key`, or null.
  const JsonValue* Find(absl::string_view key) const;
};

struct JsonLimits {
  int max_depth = 8;  // nested objects and arrays
  size_t max_values =
      4096;  // values in the text, or with ParseStrictJsonMembers in each top-level member
  size_t max_token_bytes = size_t{1} << 20;  // of a string or number, as it is spelled
};

// Errors: INVALID_ARGUMENT; the detail's field is the path of the invalid value ("attention.gate"),
// and the message names the path, the byte and the rule.
absl::StatusOr<JsonValue> ParseStrictJson(absl::string_view text, const JsonLimits& limits);

// ParseStrictJson for a text that must be an object. It passes one top-level member at a time to
// `on_member`, so the memory needed is that of one member, whatever the text's size. An error that
// `on_member` returns ends the parse and is returned.
using OnJsonMember = std::function<absl::Status(const std::string& key, const JsonValue& value)>;
absl::Status ParseStrictJsonMembers(absl::string_view text, const JsonLimits& limits,
                                    const OnJsonMember& on_member);

// `text` as a JSON string, with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text);
// A value as JSON on one line: members in their order, numbers of other kinds than kInteger as they
// were spelled.
std::string ToJson(const JsonValue& value);

// Describes a value, for messages: "the string \"abc\"", "the number 1.5", "an array of 3 values".
std::string Describe(const JsonValue& value);

// `text` for a one-line message: control characters, quotes and bytes that are not ASCII escaped,
// cut after 80 bytes; Quoted also puts it in double quotes.
std::string Escaped(absl::string_view text);
std::string Quoted(absl::string_view text);

}  // namespace rivulet
