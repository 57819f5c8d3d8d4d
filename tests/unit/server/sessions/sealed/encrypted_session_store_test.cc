// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sealed/encrypted_session_store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/sessions/dir/dir_session_store.h"
#include "server/sessions/replicated/session_record.h"
#include "tests/support/memory_session_store.h"
#include "tests/support/random_model.h"
#include "tests/unit/server/sessions/session_store_contract.h"

namespace rivulet {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<const Sealer> SealerOf(const std::string& id) {
  return std::make_shared<const Sealer>(
      SealKeys{{{id, std::string(32, id[0])}}, std::string(32, 's')});
}

class EncryptedMemory final : public StoreBacking {
 public:
  std::unique_ptr<SessionStore> Open() override {
    return MakeEncryptedSessionStore(std::make_shared<MemoryStoreThread>(&server_), SealerOf("k"));
  }
  void Empty() override { server_.Empty(); }
  void Pass(absl::Duration time) override { now_ms_ += absl::ToInt64Milliseconds(time); }

 private:
  std::atomic<int64_t> now_ms_ = 1'800'000'000'000;
  MemoryStoreServer server_{[this] { return absl::FromUnixMillis(now_ms_); }};
};

class EncryptedDirectory final : public StoreBacking {
 public:
  std::unique_ptr<SessionStore> Open() override {
    auto store = OpenDirSessionStore(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? MakeEncryptedSessionStore(*std::move(store), SealerOf("k")) : nullptr;
  }
  void Empty() override { std::filesystem::rename(path_, root_.File("old")); }

 private:
  const testing::TempDir root_;
  const std::string path_ = root_.File("store");
};

INSTANTIATE_TEST_SUITE_P(
    Encrypted, SessionStoreContract,
    ::testing::Values(
        StoreCase{"EncryptedMemory", [] { return std::make_unique<EncryptedMemory>(); }},
        StoreCase{"EncryptedDirectory", [] { return std::make_unique<EncryptedDirectory>(); }}),
    NameOfCase);

class EncryptedStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<SessionStore> Open(const std::string& id) {
    return MakeEncryptedSessionStore(std::make_shared<MemoryStoreThread>(&server_), SealerOf(id));
  }
  void SetUp() override {
    StoreWrite write = MakeWrite(1, 0, 1, "the record of one");
    write.chunks = {{"c1", "the tokens of one"}, {"c2", "other tokens"}};
    write.sets = {{"tenant/model/alice", 10}};
    ASSERT_TRUE(WriteNow(*store_, write).ok());
    ASSERT_TRUE(WriteNow(*store_, MakeWrite(2, 0, 2, "the record of two")).ok());
  }
  // What reading gives after `change` to what the store holds. Both must be refused alike.
  template <typename Change>
  absl::Status ReadAfter(const Change& change) {
    MemoryStoreImage image = server_.Image();
    change(&image);
    const MemoryStoreImage before = server_.Image();
    server_.Restore(image);
    const auto read = ReadNow(*store_, SessionName(1));
    const auto written = WriteNow(*store_, MakeWrite(1, 9, 3));
    server_.Restore(before);
    EXPECT_EQ(read.status(), written.status()) << "a write that finds the record opens it, too";
    return read.status();
  }
  static std::string Reason(const absl::Status& status) { return GetErrorDetail(status).reason; }

  MemoryStoreServer server_;
  std::unique_ptr<SessionStore> store_ = Open("k");
};

TEST_F(EncryptedStoreTest, TheStoreLearnsIdsOfSessionsAndNothingElse) {
  const MemoryStoreImage image = server_.Image();
  std::string held;
  for (const auto& [id, record] : image.records) absl::StrAppend(&held, id, record.bytes);
  for (const auto& [id, chunk] : image.chunks) absl::StrAppend(&held, id, chunk.bytes);
  for (const auto& [name, members] : image.sets) absl::StrAppend(&held, name);
  for (const char* const secret : {"record of", "tokens", "alice", "c1"}) {
    EXPECT_THAT(held, Not(HasSubstr(secret)));
  }
  EXPECT_THAT(held, HasSubstr(SessionName(1)));
}

TEST_F(EncryptedStoreTest, AChangedRecordIsRefusedWhicheverByteItIs) {
  const size_t size = server_.Image().records[SessionName(1)].bytes.size();
  for (size_t i = 0; i < size; ++i) {
    const absl::Status status = ReadAfter([i](MemoryStoreImage* image) {
      char& byte = image->records[SessionName(1)].bytes[i];
      byte = static_cast<char>(byte ^ 1);
    });
    EXPECT_THAT(Reason(status), AnyOf("SESSION_RECORD_DAMAGED", "SESSION_RECORD_KEY")) << i;
  }
}

TEST_F(EncryptedStoreTest, ARecordIsOfOneSessionAndOneClaim) {
  EXPECT_EQ(Reason(ReadAfter([](MemoryStoreImage* image) {
              image->records[SessionName(1)] = image->records[SessionName(2)];
            })),
            "SESSION_RECORD_DAMAGED");
  const MemoryStoreImage older = server_.Image();
  ASSERT_TRUE(WriteNow(*store_, MakeWrite(1, 1, 4, "newer")).ok());
  const absl::Status status = ReadAfter([&older](MemoryStoreImage* image) {
    image->records[SessionName(1)].bytes = older.records.at(SessionName(1)).bytes;
  });
  EXPECT_EQ(Reason(status), "SESSION_RECORD_DAMAGED");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("were changed, or belong to something else"));
}

TEST_F(EncryptedStoreTest, AChunkIsThatOfItsId) {
  MemoryStoreImage image = server_.Image();
  ASSERT_EQ(image.chunks.size(), 2u);
  std::swap(image.chunks.begin()->second, image.chunks.rbegin()->second);
  server_.Restore(image);
  EXPECT_EQ(Reason(ReadChunksNow(*store_, {"c1"}).status()), "SESSION_RECORD_DAMAGED");
  std::swap(image.chunks.begin()->second, image.chunks.rbegin()->second);
  server_.Restore(image);
  EXPECT_THAT(*ReadChunksNow(*store_, {"c2", "c1"}),
              ElementsAre("other tokens", "the tokens of one"));
}

TEST_F(EncryptedStoreTest, EncryptedAndNotDoNotMix) {
  const absl::Status in_clear = ReadAfter([](MemoryStoreImage* image) {
    image->records[SessionName(1)].bytes = EncodeRecord(SessionRecord());
  });
  EXPECT_EQ(Reason(in_clear), "SESSION_RECORD_KEY");
  EXPECT_THAT(std::string(in_clear.message()), HasSubstr("they are not encrypted"));
  const auto sealed = server_.Read(SessionName(1));
  const absl::Status without_keys = DecodeRecord(sealed->found.bytes).status();
  EXPECT_EQ(Reason(without_keys), "SESSION_RECORD_KEY");
  EXPECT_THAT(std::string(without_keys.message()), HasSubstr("it is encrypted"));
}

TEST_F(EncryptedStoreTest, AReplicaWithoutTheKeySaysWhichItLacks) {
  const auto other = Open("other");
  const absl::Status status = ReadNow(*other, SessionName(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(status), "SESSION_RECORD_KEY");
  EXPECT_THAT(std::string(status.message()), HasSubstr("with key \"k\", which is not in"));
  EXPECT_THAT(*ReadChunksNow(*other, {"c1"}), ElementsAre("the tokens of one"));
}

}  // namespace
}  // namespace rivulet
