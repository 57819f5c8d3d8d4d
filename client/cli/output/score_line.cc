// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/score_line.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/output/text.h"
#include "model/base/strict_json.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

constexpr absl::string_view kExpected = R"(expected {"tokens":[...]} or {"text":"..."}, and "id")";

// Handles the line's object while it is parsed: no tree is built, and the first error ends the
// parse. A handler returns false to end the parse; error() then has the reason.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Value("null"); }
  bool boolean(bool value) override { return Value(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) override { return Value(text); }
  bool binary(binary_t&) override { return Value("binary data"); }

  bool number_integer(int64_t value) override {
    if (in_id_) return TakeId(absl::StrCat(value));
    if (!in_tokens_ || value < std::numeric_limits<int32_t>::min()) {
      return Value(absl::StrCat(value));
    }
    tokens_.push_back(static_cast<int32_t>(value));
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (in_id_) return TakeId(absl::StrCat(value));
    if (!in_tokens_ || value > std::numeric_limits<int32_t>::max()) {
      return Value(absl::StrCat(value));
    }
    tokens_.push_back(static_cast<int32_t>(value));
    return true;
  }
  bool string(std::string& value) override {
    if (in_id_) return TakeId(JsonString(value));
    if (in_tokens_ || key_ != "text") return Value("a string");
    text_ = std::move(value);
    return true;
  }
  bool start_object(size_t) override {
    if (in_object_) return Value("an object");
    in_object_ = true;
    return true;
  }
  bool key(std::string& name) override {
    if (name == "id") {
      if (!id_.empty()) return Fail("key \"id\" appears twice");
      in_id_ = true;
      return true;
    }
    if (name != "tokens" && name != "text") {
      return Fail(absl::StrCat("unknown key \"", Shown(name), "\"; ", kExpected));
    }
    if (!key_.empty()) {
      return Fail(key_ == name
                      ? absl::StrCat("key \"", name, "\" appears twice")
                      : absl::StrCat("holds both \"tokens\" and \"text\"; expected one of them"));
    }
    key_ = name;
    return true;
  }
  bool end_object() override { return true; }
  bool start_array(size_t) override {
    if (in_id_ || in_tokens_ || key_ != "tokens") return Value("a list");
    in_tokens_ = true;
    return true;
  }
  bool end_array() override {
    in_tokens_ = false;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("not valid JSON at byte ", position, "; ", kExpected));
  }

  const std::string& error() const { return error_; }
  const std::string& id() const { return id_; }
  absl::StatusOr<ScoreContent> Take() {
    if (key_.empty()) return absl::InvalidArgumentError(absl::StrCat("no key; ", kExpected));
    if (key_ == "text") return ScoreContent(std::move(text_));
    return ScoreContent(std::move(tokens_));
  }

 private:
  // Refuses a value in a place where the line may not hold one.
  bool Value(absl::string_view what) {
    if (in_id_) {
      return Fail(absl::StrCat("id: ", Shown(what), "; expected a string or an integer"));
    }
    if (!in_object_) return Fail(absl::StrCat("holds ", Shown(what), "; ", kExpected));
    if (in_tokens_) {
      return Fail(absl::StrCat("tokens[", tokens_.size(), "]: ", Shown(what),
                               "; expected a token id, an integer of 32 bits"));
    }
    return Fail(absl::StrCat(key_, ": ", Shown(what),
                             key_ == "text" ? "; expected a string" : "; expected a list"));
  }
  bool TakeId(std::string json) {
    id_ = std::move(json);
    in_id_ = false;
    return true;
  }
  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  // A part of the input for a message, cut short.
  static std::string Shown(absl::string_view text) {
    constexpr size_t kMost = 40;
    if (text.size() <= kMost) return OneLine(text);
    return absl::StrCat(OneLine(text.substr(0, kMost)), "...");
  }

  bool in_object_ = false;
  bool in_tokens_ = false;
  bool in_id_ = false;
  std::string id_;  // as JSON
  std::string key_;
  std::vector<int32_t> tokens_;
  std::string text_;
  std::string error_;
};

}  // namespace

absl::StatusOr<ScoreContent> ParseScoreLine(absl::string_view line, std::string* id) {
  if (absl::StripAsciiWhitespace(line).empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the line is empty; ", kExpected));
  }
  // The parser would skip a byte order mark and end at a NUL byte.
  if (absl::StartsWith(line, "\xEF\xBB\xBF")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the line begins with a byte order mark; ", kExpected));
  }
  if (const size_t nul = line.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte ", nul + 1, " of the line is NUL; ", kExpected));
  }
  LineHandler handler;
  const bool parsed = nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
  if (id != nullptr) *id = handler.id();
  if (!parsed) {
    return absl::InvalidArgumentError(handler.error());
  }
  return handler.Take();
}

}  // namespace rivulet
