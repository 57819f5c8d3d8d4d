// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

ChatTemplate TemplateOf(const std::string& source) {
  absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source, "T", {});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

// tests/e2e/gateway/gateway_templates_test.py writes them with jinja2.
TEST(ChatTemplateTest, PromptsAreThoseOfJinja2) {
  std::ifstream file(SourcePath("tests/unit/client/cli/chat/templates.json"));
  const nlohmann::json all = nlohmann::json::parse(file);
  const std::map<std::string, std::string> special = all["special_tokens"];
  ASSERT_GE(all["cases"].size(), 30u);
  for (const nlohmann::json& one : all["cases"]) {
    SCOPED_TRACE(one["name"]);
    const auto parsed = ChatTemplate::Parse(one["template"], "T", special);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    std::vector<ChatMessage> messages;
    for (const nlohmann::json& message : one["messages"]) {
      messages.push_back({message["role"], message["content"]});
    }
    const absl::StatusOr<std::string> prompt = parsed->Render(messages);
    ASSERT_EQ(prompt.ok(), !one["prompt"].is_null()) << prompt.status();
    if (prompt.ok()) {
      EXPECT_EQ(*prompt, one["prompt"].get<std::string>());
    }
  }
}

TEST(ChatTemplateTest, ErrorsAreOneLineThatNamesReasonAndPlace) {
  const auto broken = ChatTemplate::Parse("{% for m in %}", "T", {});
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(broken.status().message(), "T: Unexpected token: %} of type 9");
  for (const auto& [source, reason] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{{ raise_exception('no\nway') }}", "no way (line 2, column "},
           {"{{ messages | shuffle }}", "filter 'shuffle'"},
           {"{{ messages[0].content.frob() }}", "line 1, column "}}) {
    const absl::Status status = TemplateOf(source).Render({{"user", "a"}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
  }
}

TEST(ChatTemplateTest, TurnEnd) {
  const std::string turns = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n\\n' }}";
  EXPECT_EQ(TemplateOf(turns + "{% endfor %}").TurnEnd(), "\n\nuser:");
  EXPECT_EQ(TemplateOf("{{ messages[-1].content }}").TurnEnd(), "") << "it writes no answer";
  EXPECT_EQ(TemplateOf("{{ raise_exception('no') }}").TurnEnd(), "");
  EXPECT_EQ(TemplateOf("{% for m in messages %}{{ m.content }} {% endfor %}").TurnEnd(), "");
  EXPECT_EQ(TemplateOf("{% for m in messages %}{{ m.content + 'a' * 257 }}{% endfor %}").TurnEnd(),
            "")
      << "the server takes no stop string of this length";
}

}  // namespace
}  // namespace rivulet
