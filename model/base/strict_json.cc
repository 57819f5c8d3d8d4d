// SPDX-License-Identifier: Apache-2.0
#include "model/base/strict_json.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

constexpr size_t kMaxShownBytes = 80;

// Receives nlohmann's events, builds JsonValues, and adds to the library: unique keys, limits,
// paths. Every callback returns false to end the parse; status() then says why.
class StrictHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictHandler(const JsonLimits& limits, const OnJsonMember* on_member)
      : limits_(limits), on_member_(on_member) {}

  const absl::Status& status() const { return status_; }
  JsonValue TakeRoot() { return std::move(root_); }

  bool null() override { return Add(JsonValue()); }
  bool boolean(bool value) override {
    JsonValue out;
    out.kind = JsonValue::Kind::kBool;
    out.boolean = value;
    return Add(std::move(out));
  }
  bool number_integer(number_integer_t value) override { return AddInteger(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return AddInteger(static_cast<int64_t>(value));
    JsonValue out;
    out.kind = JsonValue::Kind::kHugeInteger;
    out.number = static_cast<double>(value);
    out.text = absl::StrCat(value);
    return Add(std::move(out));
  }
  bool number_float(number_float_t value, const string_t& spelled) override {
    JsonValue out;
    const bool is_integer = spelled.find_first_of(".eE") == std::string::npos;
    out.kind = is_integer ? JsonValue::Kind::kHugeInteger : JsonValue::Kind::kFloat;
    out.number = value;
    out.text = spelled;
    return Add(std::move(out));
  }
  bool string(string_t& value) override {
    JsonValue out;
    out.kind = JsonValue::Kind::kString;
    out.text = std::move(value);
    return Add(std::move(out));
  }
  bool binary(binary_t&) override { return Fail("holds a binary value"); }

  bool start_object(std::size_t) override { return Open(JsonValue::Kind::kObject); }
  bool start_array(std::size_t) override {
    if (stack_.empty() && on_member_ != nullptr) return Fail("must be an object, it is an array");
    return Open(JsonValue::Kind::kArray);
  }
  bool key(string_t& value) override {
    Frame& frame = stack_.back();
    const bool is_new = frame.seen.insert(value).second;
    frame.key = std::move(value);
    return is_new || Fail("stands there twice; a key may stand in an object once");
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) {
      // The library knows the spelling only as part of its message.
      const std::string what = error.what();
      const size_t begin = what.find('\''), end = what.rfind('\'');
      const std::string spelled =
          begin < end ? what.substr(begin + 1, end - begin - 1) : std::string("a number");
      return Fail(
          absl::StrCat("is ", Escaped(spelled), "; allowed: numbers that are finite as float64"));
    }
    return Fail(
        absl::StrCat("is not valid JSON at byte ", position, ", after ", Quoted(last_token)));
  }

 private:
  struct Frame {
    JsonValue value;
    std::string key;             // the member being read
    std::set<std::string> seen;  // keys so far
  };

  std::string Path() const {
    std::string path;
    for (const Frame& frame : stack_) {
      if (frame.value.kind == JsonValue::Kind::kArray) {
        absl::StrAppend(&path, "[", frame.value.items.size(), "]");
      } else if (!frame.key.empty()) {
        absl::StrAppend(&path, path.empty() ? "" : ".", frame.key);
      }
    }
    return path;
  }

  bool Fail(absl::string_view what) {
    const std::string path = Escaped(Path());
    status_ = InvalidField("INVALID_JSON", path,
                           absl::StrCat(path.empty() ? "the text" : path, " ", what));
    return false;
  }

  bool AddInteger(int64_t value) {
    JsonValue out;
    out.kind = JsonValue::Kind::kInteger;
    out.integer = value;
    out.number = static_cast<double>(value);
    return Add(std::move(out));
  }

  bool Count() {
    if (++num_values_ <= limits_.max_values) return true;
    return Fail(absl::StrCat("holds more than ", limits_.max_values, " values"));
  }

  bool Open(JsonValue::Kind kind) {
    if (!Count()) return false;
    if (stack_.size() >= static_cast<size_t>(limits_.max_depth)) {
      return Fail(absl::StrCat("is nested deeper than ", limits_.max_depth, " levels"));
    }
    Frame frame;
    frame.value.kind = kind;
    stack_.push_back(std::move(frame));
    return true;
  }

  bool Close() {
    JsonValue value = std::move(stack_.back().value);
    stack_.pop_back();
    return Place(std::move(value));
  }

  bool Add(JsonValue value) {
    if (stack_.empty() && on_member_ != nullptr) {
      return Fail(absl::StrCat("must be an object, it is ", Describe(value)));
    }
    return Count() && Place(std::move(value));
  }

  bool Place(JsonValue value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = stack_.back();
    if (on_member_ != nullptr && stack_.size() == 1) {
      num_values_ = 0;
      status_ = (*on_member_)(frame.key, value);
      frame.key.clear();
      return status_.ok();
    }
    if (frame.value.kind == JsonValue::Kind::kObject) {
      frame.value.keys.push_back(std::move(frame.key));
      frame.key.clear();
    }
    frame.value.items.push_back(std::move(value));
    return true;
  }

  const JsonLimits limits_;
  const OnJsonMember* const on_member_;
  std::vector<Frame> stack_;
  size_t num_values_ = 0;
  JsonValue root_;
  absl::Status status_;
};

// The library copies a token several times before its callback, so long tokens are found first.
absl::Status CheckTokenLengths(absl::string_view text, size_t most) {
  size_t begin = 0;  // of the token being passed
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && in_string) {
      ++i;
    } else if (c == '"') {
      begin = in_string ? i + 1 : i;
      in_string = !in_string;
    } else if (!in_string && std::strchr(" \t\r\n,:[]{}", c) != nullptr) {
      begin = i + 1;
    }
    if (i >= begin && i - begin >= most) {
      return InvalidField("INVALID_JSON", "",
                          absl::StrCat("the text holds a string or number of more than ", most,
                                       " bytes, at byte ", begin));
    }
  }
  return absl::OkStatus();
}

absl::Status Parse(absl::string_view text, const JsonLimits& limits, StrictHandler* handler) {
  // The library would skip a byte order mark, and treat a NUL byte as the end of the text.
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    return InvalidField("INVALID_JSON", "",
                        "the text begins with a byte order mark; allowed: none");
  }
  const size_t nul = text.find('\0');
  if (nul != absl::string_view::npos) {
    return InvalidField("INVALID_JSON", "",
                        absl::StrCat("the text holds a NUL byte at byte ", nul));
  }
  RIVULET_RETURN_IF_ERROR(CheckTokenLengths(text, limits.max_token_bytes));
  const bool done = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), handler,
                                              nlohmann::json::input_format_t::json,
                                              /*strict=*/true, /*ignore_comments=*/false);
  if (!handler->status().ok()) return handler->status();
  if (!done) return InvalidField("INVALID_JSON", "", "the text is not valid JSON");
  return absl::OkStatus();
}

}  // namespace

const JsonValue* JsonValue::Find(absl::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseStrictJson(absl::string_view text, const JsonLimits& limits) {
  StrictHandler handler(limits, nullptr);
  RIVULET_RETURN_IF_ERROR(Parse(text, limits, &handler));
  return handler.TakeRoot();
}

absl::Status ParseStrictJsonMembers(absl::string_view text, const JsonLimits& limits,
                                    const OnJsonMember& on_member) {
  StrictHandler handler(limits, &on_member);
  return Parse(text, limits, &handler);
}

std::string JsonString(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ToJson(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::kInteger:
      return absl::StrCat(value.integer);
    case JsonValue::Kind::kHugeInteger:
    case JsonValue::Kind::kFloat:
      return value.text;
    case JsonValue::Kind::kString:
      return JsonString(value.text);
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kObject:
      break;
  }
  std::string items;
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string key =
        value.kind == JsonValue::Kind::kObject ? JsonString(value.keys[i]) + ":" : "";
    absl::StrAppend(&items, i > 0 ? "," : "", key, ToJson(value.items[i]));
  }
  return value.kind == JsonValue::Kind::kObject ? "{" + items + "}" : "[" + items + "]";
}

std::string Describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
    case JsonValue::Kind::kBool:
    case JsonValue::Kind::kInteger:
      return ToJson(value);
    case JsonValue::Kind::kHugeInteger:
    case JsonValue::Kind::kFloat:
      return Escaped(value.text);
    case JsonValue::Kind::kString:
      return Quoted(value.text);
    case JsonValue::Kind::kArray:
      return absl::StrCat("an array of ", value.items.size(), " values");
    case JsonValue::Kind::kObject:
      return absl::StrCat("an object of ", value.items.size(), " members");
  }
  return "";
}

std::string Escaped(absl::string_view text) {
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMaxShownBytes)),
                      text.size() > kMaxShownBytes ? "..." : "");
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", Escaped(text), "\""); }

}  // namespace rivulet
