// SPDX-License-Identifier: Apache-2.0
// `rivulet tokenize` and `rivulet detokenize`.
#include <iostream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands/commands.h"
#include "client/cli/input/request_fields.h"
#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

absl::StatusOr<std::string> ReadInput(const TokenizeOptions& options) {
  if (options.text.has_value()) return *options.text;
  std::string text;
  if (options.file == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  } else {
    RIVULET_ASSIGN_OR_RETURN(text, ReadBytes(options.file, "--file"));
  }
  if (const size_t bad = ValidUtf8Bytes(text); bad != text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(options.file, ": not UTF-8 at byte ", bad));
  }
  return text;
}

// {"ids":[...],"offsets":[[begin,end],...]}
absl::StatusOr<std::string> TokensJson(const v1::TokenizeReply& reply) {
  if (reply.begins_size() != reply.ids_size() || reply.ends_size() != reply.ids_size()) {
    return absl::InternalError(absl::StrCat("the server sent ", reply.ids_size(), " ids with ",
                                            reply.begins_size(), " begins and ", reply.ends_size(),
                                            " ends"));
  }
  std::string json = absl::StrCat("{\"ids\":[", absl::StrJoin(reply.ids(), ","), "],\"offsets\":[");
  for (int i = 0; i < reply.ids_size(); ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ",", "[", reply.begins(i), ",", reply.ends(i), "]");
  }
  return absl::StrCat(json, "]}\n");
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const TokenizeOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(std::string text, ReadInput(options));
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  v1::TokenizeRequest request;
  request.set_model(target.model_name());
  SetSpecialTokens(options.special, &request);
  const size_t bytes = text.size();
  request.set_text(std::move(text));
  RIVULET_ASSIGN_OR_RETURN(const v1::TokenizeReply reply, target.client().Tokenize(request));
  absl::StatusOr<std::string> line = absl::StrCat(absl::StrJoin(reply.ids(), ","), "\n");
  if (options.json) line = TokensJson(reply);
  if (!line.ok()) return line.status();
  RIVULET_RETURN_IF_ERROR(WriteOut(*line));
  return absl::StrCat(reply.ids_size(), " tokens, ", bytes, " bytes");
}

absl::StatusOr<std::string> RunCommand(const DetokenizeOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  v1::DetokenizeRequest request;
  request.set_model(target.model_name());
  request.mutable_ids()->Add(options.tokens.begin(), options.tokens.end());
  request.set_skip_special_tokens(options.skip_special_tokens);
  RIVULET_ASSIGN_OR_RETURN(const v1::DetokenizeReply reply, target.client().Detokenize(request));
  const bool ends_line = !reply.text().empty() && reply.text().back() == '\n';
  const std::string line = absl::StrCat(reply.text(), ends_line ? "" : "\n");
  RIVULET_RETURN_IF_ERROR(WriteOut(options.bytes ? reply.raw_bytes() : line));
  return absl::StrCat(reply.raw_bytes().size(), " bytes");
}

}  // namespace rivulet
