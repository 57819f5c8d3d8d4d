// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

// That the prompts are right is shown for the worker: tests/e2e/gateway/gateway_templates_test.py.
class ChatTemplateTest : public ::testing::Test {
 protected:
  // The request of a conversation.
  absl::StatusOr<v1::GenerateRequest> Apply(const std::string& source) {
    v1::GetModelReply model;
    auto* const token = model.add_special_tokens();
    token->set_content("<\"s\">");
    token->add_roles("bos_token");
    const absl::StatusOr<ChatTemplate> one = ChatTemplate::Of(model, {"T", source}, &process_);
    if (!one.ok()) return one.status();
    const ordered_json body = {{"messages",
                                {{{"role", "system"}, {"content", "a\n"}},
                                 {{"role", "user"}, {"content", "\xC3\xA9\"\\"}}}}};
    v1::GenerateRequest request;
    RIVULET_RETURN_IF_ERROR(one->Apply(body, "", &request).status());
    return request;
  }
  absl::StatusOr<std::string> Render(const std::string& source) {
    RIVULET_ASSIGN_OR_RETURN(const v1::GenerateRequest request, Apply(source));
    return request.text();
  }
  std::string TurnEnd(const std::string& source) {
    const absl::StatusOr<v1::GenerateRequest> request = Apply(source);
    EXPECT_TRUE(request.ok()) << request.status();
    return request->stop().strings().empty() ? "" : request->stop().strings(0);
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
    const absl::Status status = process.Run(TemplateProcess::Job::kCheck, R"(["",{}])").status();
    ASSERT_EQ(unsetenv("RIVULET_PYTHON"), 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetErrorDetail(status).reason, "NO_CHAT_TEMPLATE_ENGINE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("tried: ", python, " (")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("python3-jinja2"));
  }
}

TEST_F(ChatTemplateTest, TurnEnd) {
  const std::string turns = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n\\n' }}";
  EXPECT_EQ(TurnEnd(turns + "{% endfor %}"), "\n\nuser:");
  EXPECT_EQ(TurnEnd("{{ messages[-1].content }}"), "") << "it writes no answer";
  EXPECT_EQ(TurnEnd("{% if messages[2] %}{{ raise_exception('no') }}{% endif %}a"), "");
  EXPECT_EQ(TurnEnd("{% for m in messages %}{{ m.content }} {% endfor %}"), "");
  EXPECT_EQ(TurnEnd("{% for m in messages %}{{ m.content + 'a' * 257 }}{% endfor %}"), "")
      << "the server takes no stop string of this length";
}

// The parts of a reply, and what is left of it when it cannot be divided in time.
TEST_F(ChatTemplateTest, ReplyParts) {
  const auto parts = [&](const std::string& close) {
    v1::GetModelReply model;
    model.set_response_template(R"({"start_anchor":"A:","fields":{"thinking":{"open":"<t>",
        "close_pattern":")" + close +
                                R"("},"content":{}}})");
    v1::GenerateRequest request;
    const ordered_json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
    return *ChatTemplate::Of(model, {"T", "A:<t>"}, &process_)->Apply(body, "", &request);
  };
  using End = ReplyParts::End;
  ReplyParts good = parts("</t>");
  EXPECT_EQ(good.Add("so", End::kNot).delta["reasoning_content"], "so");
  const ReplyParts::Added last = good.Add("</t>b", End::kEnd);
  EXPECT_EQ(last.message["content"], "b");
  EXPECT_EQ(last.error, "");
  ReplyParts slow = parts("(a|aa)+b");
  EXPECT_EQ(slow.Add("aa", End::kNot).delta, ordered_json::object()) << "may begin the end";
  ReplyParts::Added whole = slow.Add(std::string(38, 'a') + "!", End::kNot);
  EXPECT_EQ(whole.code, "RESPONSE_PARSE_TOO_HARD") << whole.error;
  EXPECT_EQ(whole.delta["content"], std::string(40, 'a') + "!");
  EXPECT_EQ(slow.Add("b", End::kEnd).delta["content"], "b");
  EXPECT_EQ(good.Add("c", End::kEnd).error, "");
}

}  // namespace
}  // namespace rivulet
