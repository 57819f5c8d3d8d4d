// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/session_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

using nlohmann::ordered_json;

double Seconds(const google::protobuf::Duration& duration) {
  // One rounding, as in part_json.cc.
  return (static_cast<double>(duration.seconds()) * 1e9 + duration.nanos()) / 1e9;
}

void SetProgress(const v1::SessionProgress& progress, ordered_json* json) {
  (*json)["position"] = progress.position();
  (*json)["sequence_hash"] = absl::StrFormat("%016x", progress.sequence_hash());
}

std::string Line(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string SessionJson(const v1::Session& session, const std::string& cookie) {
  ordered_json json = {{"session_id", session.session_id()}, {"model", session.model()}};
  SetProgress(session.progress(), &json);
  json["seed"] = session.seed();
  std::vector<std::pair<int64_t, std::string>> marks;
  for (const auto& [name, position] : session.marks()) marks.emplace_back(position, name);
  std::sort(marks.begin(), marks.end());
  json["marks"] = ordered_json::object();
  for (const auto& [position, name] : marks) json["marks"][name] = position;
  json["idle_timeout_seconds"] = Seconds(session.idle_timeout());
  json["idle_seconds"] = Seconds(session.idle());
  json["state_bytes"] = session.state_bytes();
  json["busy"] = session.busy();
  if (!cookie.empty()) json["cookie"] = cookie;
  return Line(json);
}

std::string AppendJson(const v1::AppendReply& reply, bool scored) {
  ordered_json json;
  SetProgress(reply.progress(), &json);
  json["cached_tokens"] = reply.cached_tokens();
  if (scored) {
    json["nll_nats"] = reply.nll_nats();
    json["num_scored"] = reply.num_scored();
  }
  if (reply.has_durability()) {
    json["durability"] = {{"durable", reply.durability().durable()},
                          {"position", reply.durability().position()}};
    const std::string& id = reply.durability().other_numerics_id();
    if (!id.empty()) json["durability"]["other_numerics_id"] = id;
  }
  return Line(json);
}

std::string DurabilitySummary(const v1::Durability& durability) {
  const std::string& id = durability.other_numerics_id();
  return absl::StrCat(
      durability.durable() ? std::string("durable")
                           : absl::StrCat("not durable after position ", durability.position()),
      id.empty() ? "" : absl::StrCat(", computed again: it was of numerics id ", id));
}

}  // namespace rivulet
