// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sealed/sealer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "absl/strings/escaping.h"
#include "model/base/error.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SealKeys::Key KeyOf(const std::string& id) { return {id, std::string(32, id[0])}; }
Sealer SealerWith(std::vector<SealKeys::Key> keys) {
  return Sealer({std::move(keys), std::string(32, 's')});
}

TEST(SealerTest, OpensWhatItSealed) {
  const Sealer sealer = SealerWith({KeyOf("a")});
  for (const std::string& text : {std::string(), std::string("\0\xff", 2), std::string(300, 'x')}) {
    EXPECT_EQ(sealer.Open(sealer.Seal(text, "data"), "data").value(), text);
    EXPECT_EQ(sealer.OpenBySecret(sealer.SealBySecret(text, "secret"), "secret").value(), text);
  }
  EXPECT_THAT(sealer.Seal("a readable text", ""), Not(HasSubstr("readable")));
}

// What a release wrote, later ones read. Made with Python: hmac.digest and AESGCM of the package
// cryptography.
TEST(SealerTest, TheFormIsAes256GcmAsTheHeaderSays) {
  const Sealer sealer = SealerWith({KeyOf("k1")});
  const std::string sealed = absl::HexStringToBytes(
      "52564501026b31000102030405060708090a0b9cedefb420eb5c0a6ef8f2e16068abcee43b2e5a48df51"
      "30cf");
  EXPECT_EQ(sealer.Open(sealed, "data").value(), "plaintext");
  const std::string by_secret = absl::HexStringToBytes(
      "525645010573746f7265000102030405060708090a0b8484ff241748977d6072d3eb79a77a08318ca4da"
      "207c2df7d7");
  EXPECT_EQ(sealer.OpenBySecret(by_secret, "secret").value(), "plaintext");
  EXPECT_EQ(sealer.Name("text"),
            "e1892eadcc00083534f1a4856b455a3cfdd42cf83122c2747076d81694247350");
}

TEST(SealerTest, NoChangedOrCutBytesAreOpened) {
  const Sealer sealer = SealerWith({KeyOf("a"), KeyOf("b")});
  const std::string sealed = sealer.Seal("tokens", "data"), chunk = sealer.SealBySecret("t", "x");
  for (size_t i = 0; i < sealed.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = sealed;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      EXPECT_FALSE(sealer.Open(changed, "data").ok()) << "byte " << i << " bit " << bit;
    }
    EXPECT_FALSE(sealer.Open(sealed.substr(0, i), "data").ok()) << i;
  }
  for (size_t i = 0; i < chunk.size(); ++i) {
    std::string changed = chunk;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(sealer.OpenBySecret(changed, "x").ok()) << i;
  }
  EXPECT_EQ(sealer.Open(sealed + "0", "data").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(sealer.Open(sealed, "date").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(sealer.OpenBySecret(chunk, "y").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(sealer.OpenBySecret(sealed, "data").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(sealer.Open(chunk, "x").ok());
}

TEST(SealerTest, BytesInClearAreRefusedAsSuch) {
  const Sealer sealer = SealerWith({KeyOf("a")});
  const absl::Status status = sealer.Open("tokens", "data").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not encrypted"));
}

TEST(SealerTest, KeysRotate) {
  Sealer sealer = SealerWith({KeyOf("old")});
  const std::string first = sealer.Seal("1", "data"), lasting = sealer.SealBySecret("2", "secret");
  const std::string name = sealer.Name("set");
  ASSERT_TRUE(sealer.Use({{KeyOf("new"), KeyOf("old")}, std::string(32, 's')}).ok());
  EXPECT_EQ(sealer.Open(first, "data").value(), "1");
  const std::string second = sealer.Seal("3", "data");
  EXPECT_THAT(second, HasSubstr("new")) << "the first key seals";
  ASSERT_TRUE(sealer.Use({{KeyOf("new")}, std::string(32, 's')}).ok());
  EXPECT_EQ(sealer.Open(second, "data").value(), "3");
  const absl::Status status = sealer.Open(first, "data").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("key \"old\", which is not in"));
  EXPECT_EQ(sealer.OpenBySecret(lasting, "secret").value(), "2") << "whatever has left the file";
  EXPECT_EQ(sealer.Name("set"), name);
  EXPECT_EQ(sealer.Use({{KeyOf("new")}, std::string(32, 't')}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sealer.Name("set"), name);
}

TEST(SealerTest, NoncesDiffer) {
  const Sealer sealer = SealerWith({KeyOf("a")});
  std::set<std::string> nonces;
  for (int i = 0; i < 1000; ++i) nonces.insert(sealer.Seal("same", "data").substr(6, 12));
  EXPECT_EQ(nonces.size(), 1000u);
}

TEST(SealerTest, NamesFollowFromTheStoreKeyAlone) {
  const std::string name = SealerWith({KeyOf("a")}).Name("set");
  EXPECT_EQ(SealerWith({KeyOf("b")}).Name("set"), name);
  EXPECT_NE(SealerWith({KeyOf("a")}).Name("sets"), name);
  EXPECT_NE(Sealer({{KeyOf("a")}, std::string(32, 't')}).Name("set"), name);
}

class SealKeysTest : public ::testing::Test {
 protected:
  absl::StatusOr<SealKeys> Read(const std::string& text) {
    std::ofstream(path_) << text;
    return ReadSealKeys(path_);
  }
  const testing::TempDir directory_;
  const std::string path_ = directory_.File("keys");
  const std::string hex_ = "00112233445566778899AABBCCDDEEFFffeeddccbbaa99887766554433221100";
};

TEST_F(SealKeysTest, AFileIsReadInItsOrder) {
  const auto keys = Read("# comment\n\nk.2_-  " + hex_ + "\r\nstore\t" + std::string(64, '1') +
                         "\nk1 " + std::string(64, '2'));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->keys.size(), 2u);
  EXPECT_EQ(keys->keys[0].id, "k.2_-");
  EXPECT_EQ(keys->keys[0].bytes, absl::HexStringToBytes(hex_));
  EXPECT_EQ(keys->keys[1].id, "k1");
  EXPECT_EQ(keys->store_key, std::string(32, '\x11'));
}

TEST_F(SealKeysTest, ErrorsNameTheFileAndTheLineAndNoKey) {
  const std::string store = "store " + hex_ + "\n", key = "k1 " + hex_ + "\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", " has no line with the id store"},
      {key, " has no line with the id store"},
      {store, " has no line with another id than store"},
      {store + hex_, ", line 2: 1 words, not an id and a key"},
      {store + "k1 " + hex_ + " k2", ", line 2: 3 words, not an id and a key"},
      {"k1 " + hex_.substr(1), ", line 1: its key has 63 characters, not 64"},
      {"k1 " + hex_ + "0", ", line 1: its key has 65 characters, not 64"},
      {"#\nk1 g" + hex_.substr(1), ", line 2: its key has a character that is no hexadecimal"},
      {hex_ + " k1", ", line 1: its id is not 1 to 32 of A-Z"},
      {"k/1 " + hex_, ", line 1: its id is not 1 to 32 of A-Z"},
      {key + store + key, ", line 3: its id is that of a line before"},
      {store + key + store, ", line 3: its id is that of a line before"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = Read(text).status();
    EXPECT_EQ(GetErrorDetail(status).field, "session-store-encryption-keys");
    const std::string said(status.message());
    EXPECT_THAT(said, HasSubstr("session-store-encryption-keys " + path_ + message));
    EXPECT_THAT(said, Not(HasSubstr("2233445566"))) << text;
  }
  const absl::Status absent = ReadSealKeys(path_ + ".absent").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(absent.message()), HasSubstr(path_ + ".absent"));
}

}  // namespace
}  // namespace rivulet
