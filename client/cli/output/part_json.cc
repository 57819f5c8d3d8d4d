// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/part_json.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/output/json_parts.h"
#include "client/cli/output/text.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

void AppendSeconds(absl::string_view name, const google::protobuf::Duration& duration,
                   std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  // One rounding: 27 us are 2.7e-05.
  AppendNumber((static_cast<double>(duration.seconds()) * 1e9 + duration.nanos()) / 1e9, out);
}

}  // namespace

std::string PartJson(const v1::GenerateReply& part) {
  std::string line = absl::StrCat("{\"sample_index\":", part.sample_index(),
                                  ",\"first_position\":", part.first_position(), ",");
  AppendJsonList("tokens", part.tokens(), &line);
  if (part.has_seed()) absl::StrAppend(&line, ",\"seed\":", part.seed());
  if (!part.text().empty()) absl::StrAppend(&line, ",\"text\":", JsonString(part.text()));
  if (part.logprobs_size() > 0) {
    line.push_back(',');
    AppendJsonList("logprobs", part.logprobs(), &line);
  }
  if (part.top_logprobs_size() > 0) {
    line.push_back(',');
    AppendJsonList("top_logprobs", part.top_logprobs(), &line);
  }
  if (part.has_finish()) {
    const v1::Finish& finish = part.finish();
    absl::StrAppend(&line, ",\"finish\":{\"reason\":\"", FinishReasonName(finish.reason()), "\"");
    if (!finish.stop_string().empty()) {
      absl::StrAppend(&line, ",\"stop_string\":", JsonString(finish.stop_string()));
    }
    if (finish.has_stop_token_id()) {
      absl::StrAppend(&line, ",\"stop_token_id\":", finish.stop_token_id());
    }
    line.append("}");
  }
  if (part.has_session()) {
    absl::StrAppend(&line, ",\"session\":{\"position\":", part.session().position(),
                    ",\"sequence_hash\":\"",
                    absl::Hex(part.session().sequence_hash(), absl::kZeroPad16), "\"}");
  }
  if (part.has_usage()) {
    const v1::Usage& usage = part.usage();
    absl::StrAppend(&line, ",\"usage\":{\"prompt_tokens\":", usage.prompt_tokens(),
                    ",\"cached_prompt_tokens\":", usage.cached_prompt_tokens(),
                    ",\"completion_tokens\":", usage.completion_tokens(),
                    ",\"drafted_tokens\":", usage.drafted_tokens(),
                    ",\"accepted_tokens\":", usage.accepted_tokens());
    AppendSeconds("queue_seconds", usage.queue_time(), &line);
    AppendSeconds("first_token_seconds", usage.first_token_time(), &line);
    AppendSeconds("total_seconds", usage.total_time(), &line);
    line.append("}");
  }
  if (part.has_durability()) {
    absl::StrAppend(&line,
                    ",\"durability\":{\"durable\":", part.durability().durable() ? "true" : "false",
                    ",\"position\":", part.durability().position());
    if (const std::string& id = part.durability().other_numerics_id(); !id.empty()) {
      absl::StrAppend(&line, ",\"other_numerics_id\":", JsonString(id));
    }
    line.append("}");
  }
  line.append("}\n");
  return line;
}

std::string DraftsSummary(const v1::Usage& usage) {
  if (usage.drafted_tokens() == 0) return "";
  return absl::StrCat(", ", usage.accepted_tokens(), " of ", usage.drafted_tokens(),
                      " drafts accepted");
}

}  // namespace rivulet
