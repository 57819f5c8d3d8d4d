// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/snapshot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "server/sessions/sections.h"
#include "server/sessions/sequence_hash.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

constexpr absl::string_view kKey = "a key of this server";

class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() {
    EXPECT_TRUE(testing::WriteRandomModel(directory_.File("m"), testing::TinyConfig(), 1).ok());
    model_ = *Model::Load(directory_.File("m"));
    SetFingerprint(*model_, &snapshot_);
    snapshot_.numerics_id = "cpu-1";
    snapshot_.tenant = "somebody";
    snapshot_.seed = 0xfedcba9876543210;
    snapshot_.tokens = {1, 2, 3, 1, 2, 0, 3, 1, 1, 2};
    for (size_t i = 0; i < 10; ++i) snapshot_.generated.push_back(i % 3 == 0);
    snapshot_.sequence_hash = HashTokens(kEmptySequenceHash, snapshot_.tokens);
    snapshot_.marks = {{"begin", 0}, {"here", 10}};
    snapshot_.fed = 9;
    snapshot_.state.resize(snapshot_.layout.floats_per_slot());
    for (size_t i = 0; i < snapshot_.state.size(); ++i) {
      snapshot_.state[i] = std::sin(static_cast<float>(i));
    }
  }

  // By a server with this numerics id.
  absl::Status Check(const Snapshot& snapshot, const Model& model, absl::string_view tenant) {
    BackendLimits limits;
    limits.state = model.config().state().size();
    limits.numerics_id = numerics_id_;
    return CheckSnapshot(snapshot, model, limits, tenant);
  }
  static std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }
  static absl::StatusCode CodeOf(absl::string_view bytes, absl::string_view key = "") {
    return DecodeSnapshot(bytes, key).status().code();
  }
  void ExpectSame(const Snapshot& a) const {
    const Snapshot& b = snapshot_;
    EXPECT_EQ(a.model_name, b.model_name);
    EXPECT_EQ(a.weights_sha256, b.weights_sha256);
    EXPECT_EQ(a.config_sha256, b.config_sha256);
    EXPECT_EQ(a.numerics_id, b.numerics_id);
    EXPECT_EQ(a.layout.floats_per_slot(), b.layout.floats_per_slot());
    EXPECT_EQ(a.tenant, b.tenant);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.generated, b.generated);
    EXPECT_EQ(a.marks, b.marks);
    EXPECT_EQ(a.fed, b.fed);
    EXPECT_EQ(a.state, b.state);
  }

  testing::TempDir directory_;
  std::shared_ptr<const Model> model_;
  Snapshot snapshot_;
  std::string numerics_id_ = "cpu-1";
};

TEST_F(SnapshotTest, ComesBackAsItWas) {
  for (const absl::string_view key : {absl::string_view(), kKey}) {
    const std::string bytes = EncodeSnapshot(snapshot_, key);
    EXPECT_LE(bytes.size(), MaxSnapshotBytes(model_->config().bytes_per_slot(), 10));
    const auto decoded = DecodeSnapshot(bytes, key);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ExpectSame(*decoded);
    EXPECT_TRUE(Check(*decoded, *model_, "somebody").ok());
  }
}

TEST_F(SnapshotTest, AStateInPartsIsEncodedInPieces) {
  snapshot_.layout_sha256 = std::string(64, 'a');  // version 2: a state of any size
  snapshot_.state.resize(600'000);
  std::iota(snapshot_.state.begin(), snapshot_.state.end(), 0.0f);
  const std::span<const float> state = snapshot_.state;
  SnapshotEncoder encoder(
      snapshot_, {state.first(1), {}, state.subspan(1, 300'000), state.subspan(300'001)}, kKey);
  std::string all;
  for (std::string piece = encoder.Next(); !piece.empty(); piece = encoder.Next()) {
    EXPECT_LE(piece.size(), (size_t{1} << 20) + kSectionOverhead);
    all += piece;
  }
  EXPECT_TRUE(encoder.ended());
  EXPECT_TRUE(all == EncodeSnapshot(snapshot_, kKey));
  const auto decoded = DecodeSnapshot(all, kKey);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->state == snapshot_.state);
}

TEST_F(SnapshotTest, ASessionWithoutTokensHasNoState) {
  snapshot_.tokens = {};
  snapshot_.generated = {};
  snapshot_.marks = {};
  snapshot_.fed = 0;
  snapshot_.state = {};
  snapshot_.sequence_hash = kEmptySequenceHash;
  const auto decoded = DecodeSnapshot(EncodeSnapshot(snapshot_, ""), "");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded);
}

TEST_F(SnapshotTest, EveryFlippedBitIsNoticed) {
  const std::string bytes = EncodeSnapshot(snapshot_, kKey);
  ASSERT_LT(bytes.size(), 8192u);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(DecodeSnapshot(damaged, kKey).ok()) << "bit " << bit;
    EXPECT_FALSE(DecodeSnapshot(damaged, "").ok()) << "bit " << bit << ", without a key";
  }
}

TEST_F(SnapshotTest, EveryTruncationAndEveryExtraByteIsNoticed) {
  const std::string bytes = EncodeSnapshot(snapshot_, "");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(CodeOf(absl::string_view(bytes).substr(0, size)), absl::StatusCode::kDataLoss)
        << size;
  }
  EXPECT_EQ(CodeOf(bytes + '\0'), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CodeOf(bytes + bytes), absl::StatusCode::kDataLoss);
}

TEST_F(SnapshotTest, AnotherVersionSaysSo) {
  std::string bytes = EncodeSnapshot(snapshot_, "");
  bytes[8] = 4;
  EXPECT_EQ(ReasonOf(DecodeSnapshot(bytes, "").status()), "SNAPSHOT_VERSION");
}

TEST_F(SnapshotTest, AKeyRefusesWhatItDidNotSign) {
  EXPECT_EQ(ReasonOf(DecodeSnapshot(EncodeSnapshot(snapshot_, ""), kKey).status()), "SNAPSHOT_KEY");
  EXPECT_EQ(ReasonOf(DecodeSnapshot(EncodeSnapshot(snapshot_, "another"), kKey).status()),
            "SNAPSHOT_KEY");
  // Sections of two snapshots with the same key do not make a third: the MAC covers all before it.
  Snapshot other = snapshot_;
  other.seed = 1;
  const std::string a = EncodeSnapshot(snapshot_, kKey), b = EncodeSnapshot(other, kKey);
  ASSERT_EQ(a.size(), b.size());
  const size_t end = a.size() - 48;  // the last section: 16 bytes around a MAC of 32
  EXPECT_EQ(ReasonOf(DecodeSnapshot(a.substr(0, end) + b.substr(end), kKey).status()),
            "SNAPSHOT_KEY");
}

TEST_F(SnapshotTest, ValuesThatCannotBeAreRefusedThoughTheirChecksumsMatch) {
  const auto refused = [](const Snapshot& bad) {
    return CodeOf(EncodeSnapshot(bad, "")) == absl::StatusCode::kDataLoss;
  };
  Snapshot bad = snapshot_;
  for (float* const value : {&bad.state[3], &bad.state.back()}) {
    for (const float wrong : {std::nanf(""), INFINITY}) {
      const float before = std::exchange(*value, wrong);
      EXPECT_EQ(Check(bad, *model_, "somebody").code(), absl::StatusCode::kDataLoss) << wrong;
      *value = before;
    }
  }
  EXPECT_TRUE(Check(bad, *model_, "somebody").ok());
  bad.fed = 12;
  EXPECT_TRUE(refused(bad)) << "fed more than there is";
  bad.fed = -1;
  EXPECT_TRUE(refused(bad)) << "negative fed";
  bad.state = {};
  EXPECT_TRUE(refused(bad)) << "negative fed, and no state";
  bad = snapshot_;
  bad.marks["beyond"] = 11;
  EXPECT_TRUE(refused(bad)) << "mark";
  bad = snapshot_;
  bad.marks["\xff"] = 1;
  EXPECT_TRUE(refused(bad)) << "mark's name";
  bad = snapshot_;
  bad.sequence_hash ^= 1;
  EXPECT_TRUE(refused(bad)) << "hash";
  bad = snapshot_;
  bad.layout.features = 1 << 30;
  bad.layout.value_dim = 1 << 30;
  EXPECT_TRUE(refused(bad)) << "layout";
  bad = snapshot_;
  bad.state.pop_back();
  EXPECT_TRUE(refused(bad)) << "short state";
}

// The payloads of a snapshot's sections with one chunk of state, and a snapshot of such.
std::vector<std::string> PayloadsOf(absl::string_view snapshot) {
  SectionReader reader(snapshot);
  reader.Bytes(8 + sizeof(uint32_t));
  std::vector<std::string> payloads;
  for (uint32_t type = 1; type <= 4; ++type) payloads.emplace_back(*reader.Section(type));
  return payloads;
}
std::string FromPayloads(const std::vector<std::string>& payloads, uint32_t first_type = 1,
                         uint32_t version = 1) {
  SectionWriter writer;
  writer.Bytes("RVLTSNAP", 8);
  writer.Number(version);
  for (const std::string& payload : payloads) writer.AddSection(first_type++, payload);
  return writer.Take();
}

TEST_F(SnapshotTest, SectionsThatCannotBeAreRefusedThoughTheirChecksumsMatch) {
  snapshot_.marks = {{"mark 1", 3}, {"mark 2", 4}};
  const std::vector<std::string> good = PayloadsOf(EncodeSnapshot(snapshot_, ""));
  ASSERT_TRUE(DecodeSnapshot(FromPayloads(good), "").ok());
  EXPECT_EQ(CodeOf(FromPayloads(good, /*first_type=*/2)), absl::StatusCode::kDataLoss);
  std::vector<std::string> bad = good;
  bad[0].replace(bad[0].find("mark 2"), 6, "mark 1");
  EXPECT_EQ(CodeOf(FromPayloads(bad)), absl::StatusCode::kDataLoss) << "a mark twice";
  bad = good;
  bad[1].back() = static_cast<char>(bad[1].back() | 4);
  EXPECT_EQ(CodeOf(FromPayloads(bad)), absl::StatusCode::kDataLoss) << "a flag of an 11th token";
  bad = good;
  bad[3] = "short";
  EXPECT_EQ(CodeOf(FromPayloads(bad)), absl::StatusCode::kDataLoss) << "a MAC of five bytes";
}

// One number a layer is padded to eight: memory for them is not taken before they are there.
TEST_F(SnapshotTest, PaddingIsBelievedOnlyAsFarAsItsBytesAreThere) {
  snapshot_.layout = {1000, 1, 1, 1};
  snapshot_.state.assign(3000, 0.0f);  // as many as the layout has without its padding, and half
  const auto decoded = DecodeSnapshot(EncodeSnapshot(snapshot_, ""), "");
  EXPECT_EQ(ReasonOf(decoded.status()), "SNAPSHOT_DAMAGED");
  EXPECT_NE(decoded.status().message().find("its layout does not fit its size"),
            absl::string_view::npos)
      << decoded.status();
}

TEST_F(SnapshotTest, HoldsNoMoreThanItsModelsSequences) {
  model_ = *Model::Load(SourcePath("tests/conformance/models/tiny-elu-learned-concat"));
  SetFingerprint(*model_, &snapshot_);
  const auto check = [this](size_t tokens, int64_t fed) {
    snapshot_.tokens.assign(tokens, 1);
    snapshot_.fed = fed;
    snapshot_.state.resize(snapshot_.layout.floats_per_slot());
    return ReasonOf(Check(snapshot_, *model_, "somebody"));
  };
  EXPECT_EQ(check(40, 40), "");
  EXPECT_EQ(check(40, 41), "SNAPSHOT_DAMAGED") << "there is no bos";
  EXPECT_EQ(check(49, 48), "");
  EXPECT_EQ(check(50, 48), "SNAPSHOT_DAMAGED") << "there are 48 positions, the last is not fed";
}

TEST_F(SnapshotTest, IsOfItsModelAndTenantOnly) {
  EXPECT_EQ(ReasonOf(Check(snapshot_, *model_, "another")), "SNAPSHOT_TENANT");
  ASSERT_TRUE(testing::WriteRandomModel(directory_.File("o"), testing::TinyConfig(), 2).ok());
  EXPECT_EQ(ReasonOf(Check(snapshot_, **Model::Load(directory_.File("o")), "somebody")),
            "SNAPSHOT_MODEL");
  Snapshot bad = snapshot_;
  bad.config_sha256[0] ^= 1;
  EXPECT_EQ(ReasonOf(Check(bad, *model_, "somebody")), "SNAPSHOT_MODEL");
  bad = snapshot_;
  std::swap(bad.layout.layers, bad.layout.value_dim);
  EXPECT_EQ(ReasonOf(Check(bad, *model_, "somebody")), "SNAPSHOT_MODEL");
  bad = snapshot_;
  bad.tokens[4] = model_->config().vocab_size;
  EXPECT_EQ(ReasonOf(Check(bad, *model_, "somebody")), "SNAPSHOT_DAMAGED");
}

// Version 2, that of the family's models: the layout is told by its hash, the state by its size.
TEST_F(SnapshotTest, AStateOfManyPartsIsToldByItsHashAndSize) {
  snapshot_.layout = {};
  snapshot_.layout_sha256 = std::string(64, 'a');
  snapshot_.state.resize(100);
  const std::string bytes = EncodeSnapshot(snapshot_, "key");
  EXPECT_EQ(bytes[8], 2);
  const auto decoded = DecodeSnapshot(bytes, "key");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded);
  EXPECT_EQ(decoded->layout_sha256, snapshot_.layout_sha256);
  // It is of another model than ours, whose snapshots have a layout.
  EXPECT_EQ(ReasonOf(Check(*decoded, *model_, "somebody")), "SNAPSHOT_MODEL");
  snapshot_.layout_sha256 = "short";
  EXPECT_EQ(CodeOf(EncodeSnapshot(snapshot_, "")), absl::StatusCode::kDataLoss);
  snapshot_.layout_sha256 = std::string(64, 'a');
  const std::vector<std::string> good = PayloadsOf(EncodeSnapshot(snapshot_, ""));
  const uint64_t floats = 100, huge = uint64_t{1} << 61;
  const size_t at = good[0].find(std::string(64, 'a')) + 64;
  ASSERT_EQ(std::memcmp(&good[0][at], &floats, sizeof floats), 0);
  std::vector<std::string> payloads = good;
  std::memcpy(&payloads[0][at], &huge, sizeof huge);
  EXPECT_EQ(CodeOf(FromPayloads(payloads, 1, 2)), absl::StatusCode::kDataLoss) << "a size";
  EXPECT_TRUE(DecodeSnapshot(FromPayloads(good, 1, 2), "").ok());
}

TEST_F(SnapshotTest, AStateOfAnotherSizeThanItsModelsIsDamaged) {
  snapshot_.fed = 0;
  snapshot_.state = {};
  EXPECT_EQ(ReasonOf(Check(snapshot_, *model_, "somebody")), "");
  snapshot_.fed = 9;
  snapshot_.state.resize(3);
  EXPECT_EQ(ReasonOf(Check(snapshot_, *model_, "somebody")), "SNAPSHOT_DAMAGED");
}

TEST_F(SnapshotTest, AStateThatGrowsHasTheSizeOfItsTokens) {
  ModelConfig config = testing::TinyConfig();
  config.encoder().softmax = true;
  testing::TempDir directory;
  ASSERT_TRUE(testing::WriteRandomModel(directory.path(), config, 1).ok());
  const auto model = *Model::Load(directory.path());
  SetFingerprint(*model, &snapshot_);
  const StateSize size = model->config().state().size();
  for (const int64_t fed : {1, 9}) {
    snapshot_.fed = fed;
    snapshot_.state.assign(size.At(fed) / sizeof(float), 0.25f);
    const std::string bytes = EncodeSnapshot(snapshot_, "");
    EXPECT_EQ(bytes[8], 3) << "the version";
    const auto decoded = DecodeSnapshot(bytes, "");
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->state, snapshot_.state);
    EXPECT_EQ(ReasonOf(Check(*decoded, *model, "somebody")), "");
    snapshot_.state.resize(2 * snapshot_.state.size());
    EXPECT_EQ(ReasonOf(Check(snapshot_, *model, "somebody")), "SNAPSHOT_DAMAGED");
    EXPECT_EQ(ReasonOf(Check(*decoded, *model_, "somebody")), "SNAPSHOT_MODEL");
  }
}

// It is not read: the session is computed again from its tokens.
TEST_F(SnapshotTest, AStateWithAnotherTypeOfKeysAndValuesMayHaveAnotherSize) {
  snapshot_.state.resize(snapshot_.state.size() / 2);
  EXPECT_EQ(ReasonOf(Check(snapshot_, *model_, "somebody")), "SNAPSHOT_DAMAGED");
  numerics_id_ = "cpu-1-kv-f16";
  EXPECT_EQ(ReasonOf(Check(snapshot_, *model_, "somebody")), "");
  snapshot_.numerics_id = "cuda-2-kv-f16";
  EXPECT_EQ(ReasonOf(Check(snapshot_, *model_, "somebody")), "SNAPSHOT_DAMAGED");
}

TEST_F(SnapshotTest, LongStatesTravelInChunks) {
  snapshot_.layout = {7, 4, 128, 128};  // of another model: decoding does not ask
  snapshot_.state.assign(snapshot_.layout.floats_per_slot(), 0.5f);
  ASSERT_GT(snapshot_.state.size() * sizeof(float), size_t{1} << 20);
  const std::string bytes = EncodeSnapshot(snapshot_, "");
  const auto decoded = DecodeSnapshot(bytes, "");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->state, snapshot_.state);
  std::string damaged = bytes;
  damaged[bytes.size() - 100] = static_cast<char>(damaged[bytes.size() - 100] ^ 1);
  EXPECT_EQ(CodeOf(damaged), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace rivulet
