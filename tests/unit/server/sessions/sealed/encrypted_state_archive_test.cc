// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sealed/encrypted_state_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/archived_state.h"
#include "tests/support/memory_state_archive.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(EncryptedStateArchiveTest, HoldsNothingReadableAndNoStateUnderAnotherName) {
  const auto inner = std::make_shared<MemoryStateArchive>();
  const auto sealer =
      std::make_shared<const Sealer>(SealKeys{{{"k", std::string(32, 'k')}}, std::string(32, 's')});
  const auto archive = MakeEncryptedStateArchive(inner, sealer);
  const std::string a(64, 'a'), b(64, 'b');
  int64_t all_before = 0;
  const auto put = [&](const std::string& name, const std::string& bytes) {
    absl::StatusOr<int64_t> written = absl::UnknownError("no answer");
    archive->Put(Archived(name, bytes), absl::Hours(1),
                 [&](const absl::StatusOr<int64_t>& w) { written = w; });
    ASSERT_TRUE(written.ok()) << written.status();
    int64_t all = 0;
    for (const auto& state : inner->states) all += std::ssize(state.second);
    EXPECT_EQ(*written, all - std::exchange(all_before, all));
  };
  const auto get = [&](const std::string& name) {
    absl::StatusOr<std::string> bytes = absl::UnknownError("no answer");
    archive->Get(name, [&](absl::StatusOr<std::string> got) { bytes = std::move(got); });
    return bytes;
  };
  EXPECT_EQ(get(a).value(), "");
  put(a, "a readable state");
  put(b, "another");
  EXPECT_EQ(get(a).value(), "a readable state");
  ASSERT_EQ(inner->states.size(), 2u);
  for (const auto& [name, bytes] : inner->states) {
    EXPECT_THAT(name, Not(::testing::AnyOf(a, b)));
    EXPECT_THAT(bytes, Not(HasSubstr("readable")));
  }
  std::swap(inner->states.begin()->second, inner->states.rbegin()->second);
  EXPECT_EQ(get(a).status().code(), absl::StatusCode::kDataLoss);
  for (auto& [name, bytes] : inner->states) bytes = "in clear";
  EXPECT_EQ(get(a).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace rivulet
