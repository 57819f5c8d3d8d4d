// SPDX-License-Identifier: Apache-2.0
// `rivulet log-level`.
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/commands/commands.h"
#include "model/base/error.h"
#include "rivulet/v1/admin_service.pb.h"

namespace rivulet {
namespace {

constexpr char kPrefix[] = "LOG_LEVEL_";

// "info"; a level that this program does not know is shown as its number.
std::string NameOf(v1::LogLevel level) {
  const std::string name = v1::LogLevel_Name(level);
  if (name.empty()) return absl::StrCat(static_cast<int>(level));
  return absl::AsciiStrToLower(absl::StripPrefix(name, kPrefix));
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const LogLevelOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  if (options.level.empty()) {
    RIVULET_ASSIGN_OR_RETURN(const v1::GetLogLevelReply reply, target.client().GetLogLevel());
    RIVULET_RETURN_IF_ERROR(WriteOut(NameOf(reply.level()) + "\n"));
    return std::string();
  }
  v1::LogLevel level = v1::LOG_LEVEL_UNSPECIFIED;
  v1::LogLevel_Parse(absl::StrCat(kPrefix, absl::AsciiStrToUpper(options.level)), &level);
  v1::SetLogLevelRequest request;
  request.set_level(level);
  RIVULET_ASSIGN_OR_RETURN(const v1::SetLogLevelReply reply, target.client().SetLogLevel(request));
  return absl::StrCat("the log level was ", NameOf(reply.previous()), " and is ", options.level);
}

}  // namespace rivulet
