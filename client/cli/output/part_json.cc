// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/part_json.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/output/text.h"

namespace rivulet {
namespace {

void AppendOne(float value, std::string* out) {
  // A token that cannot follow has log-probability -inf, which JSON has no word for.
  if (std::isfinite(value)) {
    AppendNumber(value, out);
  } else {
    out->append("null");
  }
}
void AppendOne(int32_t value, std::string* out) { AppendNumber(int64_t{value}, out); }

template <typename List>
void AppendList(absl::string_view name, const List& list, std::string* out) {
  absl::StrAppend(out, "\"", name, "\":[");
  for (int i = 0; i < list.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendOne(list.Get(i), out);
  }
  out->append("]");
}

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
  AppendList("tokens", part.tokens(), &line);
  if (part.has_seed()) absl::StrAppend(&line, ",\"seed\":", part.seed());
  if (!part.text().empty()) absl::StrAppend(&line, ",\"text\":", JsonString(part.text()));
  if (part.logprobs_size() > 0) {
    line.push_back(',');
    AppendList("logprobs", part.logprobs(), &line);
  }
  for (int i = 0; i < part.top_logprobs_size(); ++i) {
    line.append(i == 0 ? ",\"top_logprobs\":[{" : ",{");
    AppendList("token_ids", part.top_logprobs(i).token_ids(), &line);
    line.push_back(',');
    AppendList("logprobs", part.top_logprobs(i).logprobs(), &line);
    line.append(i + 1 == part.top_logprobs_size() ? "}]" : "}");
  }
  if (part.has_finish()) {
    const v1::Finish& finish = part.finish();
    // FINISH_REASON_STOP_TOKEN is printed as "stop_token".
    const std::string name = absl::AsciiStrToLower(v1::FinishReason_Name(finish.reason()));
    absl::StrAppend(&line, ",\"finish\":{\"reason\":\"", absl::StripPrefix(name, "finish_reason_"),
                    "\"");
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
                    ",\"completion_tokens\":", usage.completion_tokens());
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

}  // namespace rivulet
