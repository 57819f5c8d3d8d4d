// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

// That the prompts are right is shown for the worker: tests/e2e/gateway/gateway_templates_test.py.
class ChatTemplateTest : public ::testing::Test {
 protected:
  ChatTemplate Of(const std::string& source) {
    return ChatTemplate(source, "T", {{"bos_token", "<\"s\">"}}, &process_);
  }
  absl::StatusOr<std::string> Render(const std::string& source) {
    return Of(source).Render({{"system", "a\n"}, {"user", "\xC3\xA9\"\\"}});
  }

  TemplateProcess process_;
};

TEST_F(ChatTemplateTest, MessagesAndSpecialTokensArriveUnchanged) {
  EXPECT_EQ(
      *Render("{{ bos_token }}{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"),
      "<\"s\">[system|a\n][user|\xC3\xA9\"\\]");
}

TEST_F(ChatTemplateTest, ErrorsAreOneLineThatNamesTheTemplateAndTheReason) {
  for (const auto& [source, message] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{% for m in %}", "T: line 2: Expected an expression, got 'end of statement block'"},
           {"{{ raise_exception('no\nway') }}", "T: no way"},
           {"{{ messages | shuffle }}", "T: line 1: No filter named 'shuffle'."}}) {
    const absl::Status status = Render(source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_EQ(GetErrorDetail(status).reason, "CHAT_TEMPLATE_REFUSED");
    EXPECT_EQ(status.message(), message);
  }
}

// Each of them ended the command with a signal, took all memory or did not end at all, before
// templates were rendered in a process of their own.
TEST_F(ChatTemplateTest, AHostileTemplateIsAnErrorAndTheNextOneIsRendered) {
  const auto repeated = [](const char* text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  for (const auto& [source, reason] : std::vector<std::pair<std::string, std::string>>{
           {"{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(0) }}", "REFUSED"},
           {absl::StrCat("{{ ", repeated("(", 20000), "1", repeated(")", 20000), " }}"), "REFUSED"},
           {repeated("{% for a in [1] %}", 30) + repeated("{% endfor %}", 30), "REFUSED"},
           {"{{ ''.__class__.__mro__ }}", "REFUSED"},
           {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "TOO_HARD"},
           {"{{ 'a' * 10000000000 }}", "TOO_HARD"},
           {"{% for i in range(99) %}{{ 'a' * 1000000 }}{% endfor %}", "TOO_HARD"}}) {
    SCOPED_TRACE(source.substr(0, 80));
    const absl::Status status = Render(source).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "CHAT_TEMPLATE_" + reason) << status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(*Render("{{ messages[0].role }}"), "system");
  }
}

TEST_F(ChatTemplateTest, AnInterpreterThatCannotRenderIsNamed) {
  for (const char* const python : {"/absent/python3", "/bin/false"}) {
    ASSERT_EQ(setenv("RIVULET_PYTHON", python, 1), 0);
    TemplateProcess process;
    const absl::Status status = ChatTemplate("a", "T", {}, &process).Render({}).status();
    ASSERT_EQ(unsetenv("RIVULET_PYTHON"), 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetErrorDetail(status).reason, "NO_CHAT_TEMPLATE_ENGINE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("tried: ", python, " (")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("python3-jinja2"));
  }
}

TEST_F(ChatTemplateTest, TurnEnd) {
  const std::string turns = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n\\n' }}";
  EXPECT_EQ(*Of(turns + "{% endfor %}").TurnEnd(), "\n\nuser:");
  EXPECT_EQ(*Of("{{ messages[-1].content }}").TurnEnd(), "") << "it writes no answer";
  EXPECT_EQ(*Of("{{ raise_exception('no') }}").TurnEnd(), "");
  EXPECT_EQ(*Of("{% for m in messages %}{{ m.content }} {% endfor %}").TurnEnd(), "");
  EXPECT_EQ(*Of("{% for m in messages %}{{ m.content + 'a' * 257 }}{% endfor %}").TurnEnd(), "")
      << "the server takes no stop string of this length";
  EXPECT_EQ(Of("{% if %}").TurnEnd().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rivulet
