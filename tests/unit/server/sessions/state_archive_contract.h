// SPDX-License-Identifier: Apache-2.0
// StateArchiveContract: tests of every StateArchive's contract, as in session_store_contract.h. One
// file of a program includes it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "server/sessions/replicated/state_archive.h"
#include "tests/support/archived_state.h"
#include "tests/support/unshared.h"

namespace rivulet {

struct ArchiveCase {
  std::string name;
  // Opens an archive; all archives of one maker share their states. nullptr: this machine cannot
  // run it.
  using Open = std::function<std::unique_ptr<StateArchive>(const StateArchiveLimits&)>;
  std::function<Open()> make;
};
inline void PrintTo(const ArchiveCase& archive, std::ostream* out) { *out << archive.name; }

inline std::string NameOfArchive(const ::testing::TestParamInfo<ArchiveCase>& info) {
  return info.param.name;
}

constexpr size_t kMib = size_t{1} << 20;

inline std::string StateName(int number) {
  std::string name(64, 'a');
  return name.replace(0, 2, std::to_string(10 + number));
}

class StateArchiveContract : public ::testing::TestWithParam<ArchiveCase> {
 protected:
  void SetUp() override {
    open_ = GetParam().make();
    if (open_ == nullptr) GTEST_SKIP() << "what it needs is not installed";
    archive_ = open_(limits_);
  }
  void Reopen(const StateArchiveLimits& limits) { archive_ = open_(limits); }

  // Bytes that were written.
  absl::StatusOr<int64_t> Put(int number, std::string bytes,
                              absl::Duration expiry = absl::Hours(1)) {
    std::promise<absl::StatusOr<int64_t>> promise;
    archive_->Put(Archived(StateName(number), std::move(bytes)), expiry,
                  [&](absl::StatusOr<int64_t> written) {
                    if (!written.ok()) written = Unshared(written.status());
                    promise.set_value(std::move(written));
                  });
    return promise.get_future().get();
  }
  std::string Get(int number) {
    std::promise<absl::StatusOr<std::string>> promise;
    archive_->Get(StateName(number),
                  [&](absl::StatusOr<std::string> bytes) { promise.set_value(std::move(bytes)); });
    const absl::StatusOr<std::string> bytes = promise.get_future().get();
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }

  ArchiveCase::Open open_;
  StateArchiveLimits limits_;
  std::unique_ptr<StateArchive> archive_;
};

TEST_P(StateArchiveContract, AnotherReplicaReadsAStateOfAnySize) {
  std::string bytes;
  for (const size_t size : {size_t{1}, kMib, 2 * kMib + 7}) {
    for (size_t i = bytes.size(); i < size; ++i) bytes.push_back(static_cast<char>(i * 31 >> 3));
    const int number = static_cast<int>(size % 10);
    ASSERT_TRUE(Put(number, bytes).ok());
    Reopen(limits_);
    EXPECT_TRUE(Get(number) == bytes) << size;
  }
  EXPECT_EQ(Get(80), "");
}

TEST_P(StateArchiveContract, AStateThatIsThereStays) {
  EXPECT_EQ(Put(1, "first").value_or(-1), 5);
  EXPECT_EQ(Put(1, "other").value_or(-1), 0) << "it is not written again";
  EXPECT_EQ(Get(1), "first");
}

TEST_P(StateArchiveContract, ThoseThatExpireFirstMakeRoom) {
  Reopen({.max_bytes = 3 * kMib + kMib / 2});
  ASSERT_TRUE(Put(1, std::string(kMib, '1'), absl::Hours(3)).ok());
  ASSERT_TRUE(Put(2, std::string(kMib, '2'), absl::Hours(1)).ok());
  ASSERT_TRUE(Put(3, std::string(kMib, '3'), absl::Hours(2)).ok());
  ASSERT_TRUE(Put(4, std::string(kMib, '4'), absl::Hours(1)).ok());
  EXPECT_EQ(Get(2), "");
  for (const int kept : {1, 3, 4}) EXPECT_EQ(Get(kept).size(), kMib) << kept;
  Reopen({.max_states = 2});
  ASSERT_TRUE(Put(5, "5", absl::Hours(4)).ok());
  EXPECT_EQ(Get(1).size(), kMib);
  EXPECT_EQ(Get(5), "5");
  EXPECT_EQ(Get(3) + Get(4), "");
}

TEST_P(StateArchiveContract, OneThatIsThereAndIsPutAgainExpiresLater) {
  Reopen({.max_states = 2});
  ASSERT_TRUE(Put(1, "1", absl::Hours(1)).ok());
  ASSERT_TRUE(Put(2, "2", absl::Hours(2)).ok());
  ASSERT_TRUE(Put(1, "1", absl::Hours(3)).ok());
  ASSERT_TRUE(Put(3, "3", absl::Hours(4)).ok());
  EXPECT_EQ(Get(1), "1");
  EXPECT_EQ(Get(2), "");
}

TEST_P(StateArchiveContract, OneThatIsPutAgainForAShorterTimeStaysAsLong) {
  Reopen({.max_states = 2});
  ASSERT_TRUE(Put(1, "1", absl::Hours(3)).ok());
  ASSERT_TRUE(Put(2, "2", absl::Hours(2)).ok());
  ASSERT_TRUE(Put(1, "1", absl::Milliseconds(1)).ok());
  ASSERT_TRUE(Put(3, "3", absl::Hours(4)).ok());
  EXPECT_EQ(Get(1), "1");
  EXPECT_EQ(Get(2), "");
}

TEST_P(StateArchiveContract, OneThatWasDroppedCanBePutAgain) {
  ASSERT_TRUE(Put(1, "damaged").ok());
  archive_->Drop(StateName(1));
  ASSERT_TRUE(Put(1, "right").ok());
  EXPECT_EQ(Get(1), "right");
}

TEST_P(StateArchiveContract, OneThatIsLargerThanAllMayBeIsRefused) {
  Reopen({.max_bytes = 10});
  ASSERT_TRUE(Put(1, "123456").ok());
  EXPECT_EQ(Put(2, "12345678901").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Get(1), "123456");
}

TEST_P(StateArchiveContract, OneThatHasExpiredIsNotThere) {
  ASSERT_TRUE(Put(1, "1", absl::Milliseconds(1)).ok());
  // A later call removes it if nothing else does.
  for (int i = 2; !Get(1).empty(); i = i % 80 + 2) ASSERT_TRUE(Put(i, "2").ok());
  EXPECT_EQ(Get(1), "");
}

TEST_P(StateArchiveContract, EachCallEndsOnceWhereTheArchiveIsClosed) {
  std::atomic<int> ended = 0;
  for (int i = 0; i < 20; ++i) {
    archive_->Put(Archived(StateName(i), std::string(100, 'x')), absl::Hours(1),
                  [&](const absl::StatusOr<int64_t>&) { ++ended; });
    archive_->Get(StateName(i), [&](const absl::StatusOr<std::string>&) { ++ended; });
  }
  archive_ = nullptr;
  EXPECT_EQ(ended, 40);
}

}  // namespace rivulet
