// SPDX-License-Identifier: Apache-2.0
// Records and chunks of sessions that earlier releases wrote (records/README.md) are read.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "server/sessions/replicated/session_record.h"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

std::string Bytes(const std::string& file) {
  const std::string path = SourcePath("tests/unit/server/sessions/replicated/records/" + file);
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class OldRecordTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OldRecordTest, SessionIsReadWithItsTokens) {
  const absl::StatusOr<SessionRecord> read = DecodeRecord(Bytes(GetParam() + ".record"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model_name, "modèle");
  EXPECT_EQ(read->weights_sha256, std::string(64, 'a'));
  EXPECT_EQ(read->config_sha256, std::string(64, 'b'));
  EXPECT_EQ(read->numerics_id, "cpu-f32-exact-fma-1");
  EXPECT_EQ(read->tenant, "tenant");
  EXPECT_EQ(read->key, "key");
  EXPECT_EQ(read->epoch, 9u);
  EXPECT_FALSE(read->closed);
  EXPECT_EQ(read->position, 12);
  EXPECT_EQ(read->seed, ~uint64_t{0});
  EXPECT_EQ(read->marks, (std::map<std::string, int64_t>{{"", 0}, {"end", 12}}));
  EXPECT_EQ(read->idle_timeout, absl::Milliseconds(7001));
  EXPECT_EQ(read->abandoned_from, 3);
  EXPECT_EQ(read->request, ~uint64_t{0} - 1);
  EXPECT_EQ(read->written, absl::FromUnixMillis(1'764'000'000'123));
  EXPECT_FALSE(read->owns_chunks) << "its writer may have forked it";
  ASSERT_EQ(read->chunks, (std::vector<ChunkUse>{{"1", 7}, {"2", 5}}));

  TokenHistory history;
  for (const ChunkUse& use : read->chunks) {
    const std::string bytes = Bytes(GetParam() + ".chunk-" + use.id);
    ASSERT_EQ(AppendTokens(use, bytes, "tenant", &history), absl::OkStatus());
  }
  const std::vector<int32_t> tokens = {0, 1, 255, 256, 65535, 65536, 2147483647, 7, 8, 9, 10, 11};
  EXPECT_EQ(std::vector<int32_t>(history.tokens().begin(), history.tokens().end()), tokens);
  for (int64_t i = 0; i < history.size(); ++i) EXPECT_EQ(history.generated(i), i % 3 == 0) << i;
  EXPECT_EQ(read->sequence_hash, history.hash());
}

TEST_P(OldRecordTest, TombstoneIsRead) {
  const absl::StatusOr<SessionRecord> read = DecodeRecord(Bytes(GetParam() + "-closed.record"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->closed);
  EXPECT_EQ(read->epoch, 10u);
  EXPECT_FALSE(read->abandoned_from || read->request);
}

INSTANTIATE_TEST_SUITE_P(Formats, OldRecordTest, ::testing::Values("format-1"));

}  // namespace
}  // namespace rivulet
