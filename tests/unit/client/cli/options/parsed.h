// SPDX-License-Identifier: Apache-2.0
// Parses command lines of `rivulet`.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/options/options.h"

namespace rivulet::testing {

// The options of a command that must be a T; T() if it is not.
template <typename T>
T Parsed(const std::vector<std::string>& args) {
  absl::StatusOr<Command> command = ParseCommandLine(args);
  EXPECT_TRUE(command.ok()) << command.status();
  if (!command.ok() || !std::holds_alternative<T>(*command)) {
    ADD_FAILURE() << "another command";
    return T();
  }
  return std::get<T>(*std::move(command));
}

// The error line of a command that must be refused.
inline std::string Refusal(const std::vector<std::string>& args) {
  const absl::StatusOr<Command> command = ParseCommandLine(args);
  if (command.ok()) return "accepted";
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  std::string message(command.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

// The words of a command line, between spaces; '' is an empty one.
inline std::vector<std::string> Words(absl::string_view line) {
  std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  for (std::string& word : words) word = word == "''" ? "" : word;
  return words;
}

// A command line that must be refused, and texts that the error must mention: options and values.
struct BadLine {
  std::string line;
  std::vector<std::string> mentions;
};

inline void ExpectRefused(const std::vector<BadLine>& lines) {
  for (const auto& [line, mentions] : lines) {
    const std::string refusal = Refusal(Words(line));
    EXPECT_NE(refusal, "accepted") << line;
    for (const std::string& mention : mentions) {
      EXPECT_THAT(refusal, ::testing::HasSubstr(mention)) << line;
    }
  }
}

}  // namespace rivulet::testing
