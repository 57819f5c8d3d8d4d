// SPDX-License-Identifier: Apache-2.0
#include "model/text/response_templates.h"

#include "absl/strings/match.h"

namespace rivulet {
namespace {

constexpr char kQwen35[] =
    R"json({"version":1,"defaults":{"role":"assistant"},"start_anchor":"<|im_start|>assistant\n",)json"
    R"json("fields":{"thinking":{"open":"<think>","close":"</think>"},)json"
    R"json("content":{"close":"<|im_end|>","repeats":true,"join":""},)json"
    R"json("tool_calls":{"open_pattern":"<tool_call>\\s*<function=(?P<name>[^>\\n]+)>",)json"
    R"json("close_pattern":"</function>\\s*</tool_call>","repeats":true,"content":"xml-inline",)json"
    R"json("content_args":{"tag_pattern":)json"
    R"json("<parameter=(?P<key>[^>\\n]+)>\\n?(?P<value>.*?)\\n?</parameter>"},)json"
    R"json("transform":{"type":"function",)json"
    R"json("function":{"name":"{name}","arguments":"{content}"}}}}})json";

constexpr char kLfm2[] =
    R"json({"version":1,"defaults":{"role":"assistant"},"start_anchor":"<|im_start|>assistant\n",)json"
    R"json("fields":{"thinking":{"open":"<think>","close":"</think>"},)json"
    R"json("content":{"close":"<|im_end|>","repeats":true,"join":""},)json"
    R"json("tool_calls":{"open":"<|tool_call_start|>","close":"<|tool_call_end|>",)json"
    R"json("content":"python-call-list","transform_each":true,"transform":{"type":"function",)json"
    R"json("function":{"name":"{name}","arguments":"{arguments}"}}}}})json";

// Only checkpoints that show tool calls in this form write them so: Qwen3.5's own in the chat
// template, LFM2's by a control token; and for example not a small model with its own template.
struct BuiltIn {
  const char* model_type;  // of its text model, and what a GGUF file is presented as
  const char* shows;
  const char* name;
  const char* json;
};
constexpr BuiltIn kBuiltIn[] = {
    {"qwen3_5_text", "<function=", "qwen3.5", kQwen35},
    {"qwen3_5_moe_text", "<function=", "qwen3.5", kQwen35},
    {"lfm2", "<|tool_call_start|>", "lfm2", kLfm2},
    {"lfm2_moe", "<|tool_call_start|>", "lfm2", kLfm2},
};

}  // namespace

std::optional<ResponseTemplate> BuiltInResponseTemplate(absl::string_view model_type,
                                                        absl::string_view shown) {
  for (const BuiltIn& built_in : kBuiltIn) {
    if (model_type != built_in.model_type) continue;
    if (!absl::StrContains(shown, built_in.shows)) return std::nullopt;
    return ResponseTemplate{built_in.json, built_in.name};
  }
  return std::nullopt;
}

}  // namespace rivulet
