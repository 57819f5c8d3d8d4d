// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/wire_field.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// The engine's name of a field, also in front of [i], and the client's name.
using Names = std::vector<std::pair<absl::string_view, std::string>>;

bool Replace(absl::string_view from, absl::string_view to, std::string* text) {
  const bool found = *text == from || absl::StartsWith(*text, absl::StrCat(from, "[")) ||
                     absl::StartsWith(*text, absl::StrCat(from, " "));
  if (found) text->replace(0, from.size(), std::string(to));
  return found;
}

// A message about the field begins with its name.
absl::Status Rename(const absl::Status& status, const Names& names) {
  ErrorDetail detail = GetErrorDetail(status);
  std::string message(status.message());
  for (const auto& [from, to] : names) {
    if (!Replace(from, to, &detail.field)) continue;
    Replace(from, to, &message);
    return MakeError(status.code(), message, detail);
  }
  return status;
}

Names SessionNames() {
  return {{"session_id", "session.session_id"},
          {"position", "session.position"},
          {"mark", "session.mark"},
          {"sequence_hash", "session.sequence_hash"}};
}

// `member`: the member of the oneof that the request holds.
Names ContentNames(absl::string_view oneof, absl::string_view member) {
  Names names = SessionNames();
  const std::string path = absl::StrCat(oneof, ".", member);
  names.emplace_back(oneof == "prompt" ? "prompt.tokens" : "content.tokens", path);
  names.emplace_back("tokens", path);
  return names;
}

template <typename Request>
absl::string_view MemberOf(const Request& request) {
  if (request.has_text()) return "text";
  return request.has_image_values() ? "image_values" : "tokens";
}

}  // namespace

absl::Status NameWireField(const absl::Status& status, const v1::GenerateRequest& request) {
  return Rename(status, ContentNames("prompt", MemberOf(request)));
}

absl::Status NameWireField(const absl::Status& status, const v1::ScoreRequest& request) {
  return Rename(status, ContentNames("content", request.has_text() ? "text" : "tokens"));
}

absl::Status NameWireField(const absl::Status& status, const v1::AppendRequest& request) {
  return Rename(status, ContentNames("content", MemberOf(request)));
}

absl::Status NameWireField(const absl::Status& status, const v1::ForkSessionRequest&) {
  return Rename(status, SessionNames());
}

absl::Status NameWireField(const absl::Status& status, const v1::RewindSessionRequest&) {
  return Rename(status, {{"position", "to.position"}, {"mark", "to.mark"}});
}

}  // namespace rivulet
