// SPDX-License-Identifier: Apache-2.0
// `rivulet models --model DIR`: the contents of a directory, from the headers of its files.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands/commands.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "nlohmann/json.hpp"
#include "server/start/model_description.h"

namespace rivulet {
namespace {

// "12.5 KiB", and from one MiB on "12.5 MiB".
std::string Bytes(int64_t bytes) {
  if (bytes >= 1 << 20) return Mebibytes(bytes);
  return absl::StrFormat("%.1f KiB", static_cast<double>(bytes) / 1024);
}

std::string Json(const ModelDescription& d) {
  nlohmann::ordered_json json = {{"name", d.name},
                                 {"kind", d.kind},
                                 {"content", d.content},
                                 {"num_parameters", d.num_parameters},
                                 {"active_parameters", d.active_parameters},
                                 {"token_weight_bytes", d.token_weight_bytes},
                                 {"dtypes", d.dtypes},
                                 {"weight_bytes", d.weight_bytes},
                                 {"state_bytes", d.state_bytes},
                                 {"num_layers", d.num_layers},
                                 {"hidden_size", d.hidden_size},
                                 {"vocab_size", d.vocab_size},
                                 {"num_heads", d.num_heads},
                                 {"key_dim", d.key_dim},
                                 {"value_dim", d.value_dim},
                                 {"slots", d.slots},
                                 {"slots_choice", d.slots_choice}};
  if (d.token_bytes > 0) {
    json["context"] = d.context;
    json["fixed_bytes"] = d.fixed_bytes;
    json["token_bytes"] = d.token_bytes;
    json["kv_cache"] = d.kv_cache;
    for (const ContextSlots& row : d.contexts) {
      json["contexts"].push_back({{"context", row.context}, {"slots", row.slots}});
    }
  }
  for (const ModelDescription::Choice& choice : d.choices) {
    json["choices"].push_back({{"weights", choice.weights},
                               {"weight_bytes", choice.weight_bytes},
                               {"slots", choice.slots}});
  }
  if (!d.tokenizer.empty()) {
    json["tokenizer"] = {{"kind", d.tokenizer}, {"size", d.tokenizer_size}};
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string StateText(const ModelDescription& d) {
  if (d.token_bytes == 0) return Bytes(d.state_bytes);
  return absl::StrCat(Bytes(d.fixed_bytes), " and ", Bytes(d.token_bytes), " a token; ",
                      Bytes(d.state_bytes), " with room for ", d.context, " tokens");
}

std::string Text(const ModelDescription& d) {
  std::vector<std::vector<std::string>> rows = {
      {"name", d.name},
      {"kind", d.kind},
      {"content", d.content},
      {"tokenizer",
       d.tokenizer.empty() ? "none" : absl::StrCat(d.tokenizer, ", ", d.tokenizer_size, " tokens")},
      {"parameters", Compact(static_cast<double>(d.num_parameters))},
      {"types", d.dtypes},
      {"weights", Bytes(d.weight_bytes)},
      {"read for a token",
       absl::StrCat(Compact(static_cast<double>(d.active_parameters)), " parameters, ",
                    Bytes(d.token_weight_bytes), " of weights")},
      {"state of a sequence", StateText(d)},
      {"layers", absl::StrCat(d.num_layers)},
      {"width", absl::StrCat(d.hidden_size)},
      {"vocabulary", absl::StrCat(d.vocab_size)},
      {"heads",
       absl::StrCat(d.num_heads, ", each of ", d.key_dim, " keys and ", d.value_dim, " values")},
      {"slots", absl::StrCat(d.slots, " (", d.slots_choice, ")")}};
  for (const ContextSlots& row : d.contexts) {
    rows.push_back(
        {absl::StrCat("with --max-context ", row.context),
         absl::StrCat(Bytes(d.fixed_bytes + d.token_bytes * row.context), " a state, ",
                      row.slots == 0 ? "no slot fits" : absl::StrCat(row.slots, " slots"),
                      ", --kv-cache ", d.kv_cache)});
  }
  for (const ModelDescription::Choice& choice : d.choices) {
    rows.push_back(
        {absl::StrCat("with --weights ", choice.weights),
         absl::StrCat(Bytes(choice.weight_bytes), " of weights, ", choice.slots, " slots")});
  }
  return Table(rows);
}

}  // namespace

absl::StatusOr<std::string> DescribeDirectory(const ModelsOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const ModelDescription description,
                           DescribeModel(ConfigOf(options.target)));
  RIVULET_RETURN_IF_ERROR(WriteOut(options.json ? Json(description) : Text(description)));
  return std::string();
}

}  // namespace rivulet
