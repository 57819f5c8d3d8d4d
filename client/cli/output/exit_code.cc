// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/exit_code.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/output/text.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

// The option of this command that helps: servers name fields and metadata, because they have many
// kinds of clients.
absl::string_view Hint(absl::string_view reason) {
  constexpr std::pair<absl::string_view, absl::string_view> kHints[] = {
      {"MODEL_NAME_MISSING", "--model-name NAME chooses one"},
      {"TEXT_NOT_SUPPORTED", "generate takes --tokens, and --values of an image"},
      {"API_KEY_MISSING", "--key-file FILE or the variable RIVULET_KEY holds it"},
      {"API_KEY_UNKNOWN", "it comes from --key-file or from the variable RIVULET_KEY"},
      {"API_KEY_EXPIRED", "it comes from --key-file or from the variable RIVULET_KEY"},
      {"API_KEY_NOT_ADMIN", "--key-file FILE or the variable RIVULET_KEY holds the key"},
      {"API_KEY_TENANT", "--tenant sets it"},
  };
  for (const auto& [of, hint] : kHints) {
    if (reason == of) return hint;
  }
  return "";
}

// A server with TLS closes the connection of a client without TLS, or without a certificate that it
// asks for, and gRPC says only that.
bool MayNeedTls(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable &&
         absl::StrContains(status.message(), "failed to connect") &&
         absl::StrContains(status.message(), "Socket closed");
}

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitBadInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return kExitUnavailable;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    default:
      return kExitBug;
  }
}

std::string Description(const absl::Status& status) {
  const std::string field = GetErrorInfo(status).field;
  const std::string message = status.message().empty() ? absl::StatusCodeToString(status.code())
                                                       : std::string(status.message());
  if (field.empty() || absl::StrContains(message, field)) return message;
  return absl::StrCat(field, ": ", message);
}

std::string ErrorLine(const absl::Status& status) {
  std::string line = absl::StrCat("rivulet: ", Description(status));
  const ErrorInfo info = GetErrorInfo(status);
  if (const absl::string_view hint = Hint(info.reason); !hint.empty()) {
    absl::StrAppend(&line, " (", hint, ")");
  }
  if (MayNeedTls(status)) {
    absl::StrAppend(&line,
                    " (does the server speak TLS? then use --tls, and --tls-cert if it asks ",
                    "clients for a certificate)");
  }
  if (info.retry_delay > absl::ZeroDuration()) {
    absl::StrAppend(&line, " (try again in ", absl::FormatDuration(info.retry_delay), ")");
  }
  if (!info.request_id.empty()) absl::StrAppend(&line, " (request ", info.request_id, ")");
  return OneLine(line);
}

}  // namespace rivulet
