// SPDX-License-Identifier: Apache-2.0
// `rivulet sessions`: each action is one call, or two with a file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands/commands.h"
#include "client/cli/input/request_fields.h"
#include "client/cli/output/output_file.h"
#include "client/cli/output/session_json.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// The summary of a command that has printed everything already.
const char kNoSummary[] = "";

void SetDuration(double seconds, google::protobuf::Duration* duration) {
  const double whole = std::floor(seconds);
  duration->set_seconds(static_cast<int64_t>(whole));
  duration->set_nanos(static_cast<int32_t>((seconds - whole) * 1e9));
}

// Prints ids, or sessions as JSON, one per line. The summary has the cookie, which ids lack.
absl::StatusOr<std::string> PrintSessions(const SessionsOptions& options, const Client& client,
                                          const std::vector<v1::Session>& sessions) {
  std::string out, cookie;
  for (const v1::Session& session : sessions) {
    cookie = client.SessionCookie(session.session_id());
    out += options.json ? SessionJson(session, cookie) : session.session_id() + "\n";
  }
  RIVULET_RETURN_IF_ERROR(WriteOut(out));
  return cookie.empty() || options.json ? kNoSummary : absl::StrCat("cookie ", cookie);
}

absl::StatusOr<std::string> PrintProgress(const SessionsOptions& options, int64_t position,
                                          const std::string& json) {
  const std::string out = options.json ? json : absl::StrCat(position, "\n");
  RIVULET_RETURN_IF_ERROR(WriteOut(out));
  return kNoSummary;
}

absl::StatusOr<std::string> Open(const SessionsOptions& options, const Target& target) {
  v1::OpenSessionRequest request;
  request.set_model(target.model_name());
  if (options.seed.has_value()) request.set_seed(*options.seed);
  if (options.idle_seconds.has_value()) {
    SetDuration(*options.idle_seconds, request.mutable_idle_timeout());
  }
  RIVULET_ASSIGN_OR_RETURN(const v1::OpenSessionReply reply, target.client().OpenSession(request));
  return PrintSessions(options, target.client(), {reply.session()});
}

absl::StatusOr<std::string> Append(const SessionsOptions& options, const Target& target) {
  v1::AppendRequest request;
  request.set_model(target.model_name());
  SetSession(options.session, request.mutable_session());
  RIVULET_RETURN_IF_ERROR(SetPrompt(options, &request));
  request.set_score(options.score);
  if (options.cache.enabled) SetCache(options.cache, request.mutable_cache());
  request.set_priority(ToPriority(options.priority));
  RIVULET_ASSIGN_OR_RETURN(const v1::AppendReply reply, target.client().Append(request));
  const absl::StatusOr<std::string> printed =
      PrintProgress(options, reply.progress().position(), AppendJson(reply, options.score));
  if (!printed.ok()) return printed;
  std::vector<std::string> summary;
  if (options.score) {
    summary.push_back(
        absl::StrFormat("%.6f nats over %d tokens", reply.nll_nats(), reply.num_scored()));
  }
  if (options.cache.enabled) {
    summary.push_back(absl::StrCat(reply.cached_tokens(), " tokens cached"));
  }
  if (reply.has_durability()) summary.push_back(DurabilitySummary(reply.durability()));
  return absl::StrJoin(summary, ", ");
}

absl::StatusOr<std::string> Fork(const SessionsOptions& options, const Target& target) {
  v1::ForkSessionRequest request;
  request.set_model(target.model_name());
  SetSession(options.session, request.mutable_session());
  if (options.count.has_value()) request.set_count(*options.count);
  if (options.seed.has_value()) request.set_seed(*options.seed);
  RIVULET_ASSIGN_OR_RETURN(const v1::ForkSessionReply reply, target.client().ForkSession(request));
  return PrintSessions(options, target.client(),
                       {reply.sessions().begin(), reply.sessions().end()});
}

absl::StatusOr<std::string> Rewind(const SessionsOptions& options, const Target& target) {
  v1::RewindSessionRequest request;
  request.set_model(target.model_name());
  request.set_session_id(options.session.id);
  if (options.session.position.has_value()) {
    request.set_position(*options.session.position);
  } else {
    request.set_mark(options.session.mark);
  }
  RIVULET_ASSIGN_OR_RETURN(const v1::RewindSessionReply reply,
                           target.client().RewindSession(request));
  const v1::Session& session = reply.session();
  return PrintProgress(options, session.progress().position(), SessionJson(session, ""));
}

absl::StatusOr<std::string> Snapshot(const SessionsOptions& options, const Target& target) {
  OutputFile file(options.file);  // before the call, which is useless if the file cannot be written
  RIVULET_RETURN_IF_ERROR(file.Open());
  v1::SnapshotSessionRequest request;
  request.set_model(target.model_name());
  request.set_session_id(options.session.id);
  RIVULET_ASSIGN_OR_RETURN(const std::string bytes, target.client().SnapshotSession(request));
  RIVULET_RETURN_IF_ERROR(file.Write(bytes));
  RIVULET_RETURN_IF_ERROR(file.Commit());
  return absl::StrCat(bytes.size(), " bytes in ", options.file);
}

absl::StatusOr<std::string> Restore(const SessionsOptions& options, const Target& target) {
  RIVULET_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(options.file, "--input"));
  v1::RestoreSessionRequest request;
  request.set_model(target.model_name());
  if (options.idle_seconds.has_value()) {
    SetDuration(*options.idle_seconds, request.mutable_idle_timeout());
  }
  RIVULET_ASSIGN_OR_RETURN(const v1::RestoreSessionReply reply,
                           target.client().RestoreSession(request, bytes));
  RIVULET_ASSIGN_OR_RETURN(const std::string printed,
                           PrintSessions(options, target.client(), {reply.session()}));
  const std::string goes_on = reply.same_numerics()
                                  ? "it continues bit for bit"
                                  : "other numerics: it continues within the tolerance of the two";
  return printed.empty() ? goes_on : absl::StrCat(goes_on, ", ", printed);
}

absl::StatusOr<std::string> List(const SessionsOptions& options, const Target& target) {
  v1::ListSessionsRequest request;
  request.set_model(target.model_name());
  RIVULET_ASSIGN_OR_RETURN(const v1::ListSessionsReply reply,
                           target.client().ListSessions(request));
  std::vector<std::vector<std::string>> rows = {
      {"SESSION", "POSITION", "STATE", "IDLE", "BUSY", "MARKS"}};
  std::string json;
  for (const v1::Session& session : reply.sessions()) {
    json += SessionJson(session, "");
    std::vector<std::string> marks;
    for (const auto& [name, position] : session.marks()) {
      marks.push_back(absl::StrCat(OneLine(name), "=", position));
    }
    std::sort(marks.begin(), marks.end());
    rows.push_back({session.session_id(), absl::StrCat(session.progress().position()),
                    absl::StrFormat("%.1f KiB", static_cast<double>(session.state_bytes()) / 1024),
                    absl::StrCat(session.idle().seconds(), " s"), session.busy() ? "yes" : "no",
                    absl::StrJoin(marks, " ")});
  }
  RIVULET_RETURN_IF_ERROR(WriteOut(options.json ? json : Table(rows)));
  return kNoSummary;
}

absl::StatusOr<std::string> Close(const SessionsOptions& options, const Target& target) {
  v1::CloseSessionRequest request;
  request.set_model(target.model_name());
  request.set_session_id(options.session.id);
  RIVULET_RETURN_IF_ERROR(target.client().CloseSession(request));
  return kNoSummary;
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const SessionsOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  RIVULET_RETURN_IF_ERROR(UseCookie(options.session, target.client()));
  switch (options.action) {
    case SessionsAction::kOpen:
      return Open(options, target);
    case SessionsAction::kAppend:
      return Append(options, target);
    case SessionsAction::kFork:
      return Fork(options, target);
    case SessionsAction::kRewind:
      return Rewind(options, target);
    case SessionsAction::kSnapshot:
      return Snapshot(options, target);
    case SessionsAction::kRestore:
      return Restore(options, target);
    case SessionsAction::kList:
      return List(options, target);
    case SessionsAction::kClose:
      break;
  }
  return Close(options, target);
}

}  // namespace rivulet
