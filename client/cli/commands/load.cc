// SPDX-License-Identifier: Apache-2.0
// `rivulet load`: the current load of a server.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/commands/commands.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() / 1e9;
}

std::string Line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// The names of ModelLoad.
std::string ModelJson(const v1::ModelLoad& load) {
  return Line({{"model", load.model()},
               {"slots", load.slots()},
               {"slots_used", load.slots_used()},
               {"queued", load.queued()},
               {"max_queue", load.max_queue()},
               {"max_tenant_queue", load.max_tenant_queue()},
               {"queued_high", load.queued_high()},
               {"queued_normal", load.queued_normal()},
               {"queued_low", load.queued_low()},
               {"oldest_wait", Seconds(load.oldest_wait())},
               {"tokens_per_second", load.tokens_per_second()},
               {"tokens_total", load.tokens_total()},
               {"sessions", load.sessions()},
               {"session_state_bytes", load.session_state_bytes()},
               {"states_in_memory", load.states_in_memory()},
               {"states_on_disk", load.states_on_disk()},
               {"state_disk_bytes", load.state_disk_bytes()},
               {"states_forgotten", load.states_forgotten()},
               {"state_file_errors", load.state_file_errors()},
               {"prompt_cache_hits", load.prompt_cache_hits()},
               {"prompt_cache_misses", load.prompt_cache_misses()},
               {"prompt_cache_bytes", load.prompt_cache_bytes()},
               {"tenants", load.tenants()},
               {"parked", load.parked()},
               {"preempted", load.preempted()},
               {"preempted_total", load.preempted_total()},
               {"drafted_total", load.drafted_total()},
               {"accepted_total", load.accepted_total()},
               {"refused_total", load.refused_total()},
               {"cut_total", load.cut_total()},
               {"draining", load.draining()}});
}

std::string ServerJson(const v1::ServerLoad& load) {
  nlohmann::ordered_json refusals = nlohmann::ordered_json::object();
  for (const auto& [reason, count] : load.refusals()) refusals[reason] = count;
  return Line({{"server",
                {{"connections", load.connections()},
                 {"max_connections", load.max_connections()},
                 {"connections_total", load.connections_total()},
                 {"connections_refused_total", load.connections_refused_total()},
                 {"connections_closed_total", load.connections_closed_total()},
                 {"refusals", std::move(refusals)}}}});
}

std::vector<std::string> Row(const v1::ModelLoad& load) {
  return {load.model(),
          absl::StrCat(load.slots_used(), "/", load.slots()),
          absl::StrCat(load.queued(), "/", load.max_queue()),
          absl::StrFormat("%.2f s", Seconds(load.oldest_wait())),
          Compact(load.tokens_per_second()),
          absl::StrCat(load.tenants()),
          absl::StrCat(load.sessions()),
          Mebibytes(load.session_state_bytes()),
          load.draining() ? "yes" : "no"};
}

// "3 of 9737 connections (12 since start, 0 refused, 0 closed); requests refused: 4 QUEUE_FULL"
std::string Summary(const v1::ServerLoad& load) {
  std::string text = absl::StrCat(load.connections());
  if (load.max_connections() > 0) absl::StrAppend(&text, " of ", load.max_connections());
  absl::StrAppend(&text, " connections (", load.connections_total(), " since start, ",
                  load.connections_refused_total(), " refused, ", load.connections_closed_total(),
                  " closed); requests refused:");
  if (load.refusals().empty()) absl::StrAppend(&text, " none");
  const char* comma = " ";
  for (const auto& [reason, count] : load.refusals()) {
    absl::StrAppend(&text, comma, count, " ", reason);
    comma = ", ";
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const LoadOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  RIVULET_ASSIGN_OR_RETURN(const v1::GetLoadReply reply,
                           target.client().GetLoad(target.model_name()));
  std::vector<std::vector<std::string>> rows = {{"NAME", "SLOTS USED", "QUEUED", "OLDEST WAIT",
                                                 "TOKENS/S", "TENANTS", "SESSIONS", "STATES",
                                                 "DRAINING"}};
  std::string json;
  for (const v1::ModelLoad& load : reply.models()) {
    rows.push_back(Row(load));
    json += ModelJson(load);
  }
  json += ServerJson(reply.server());
  RIVULET_RETURN_IF_ERROR(WriteOut(options.json ? json : Table(rows)));
  return options.json ? std::string() : Summary(reply.server());
}

}  // namespace rivulet
