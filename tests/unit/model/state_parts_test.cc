// SPDX-License-Identifier: Apache-2.0
// Where the parts of a state lie, and the texts that identify states in snapshots. The texts are
// those of commit 3215b7f (linear_attn: of the commit that added it): a text that changes refuses
// every snapshot of its kind.
#include "model/state_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/base/file.h"
#include "model/block_settings.h"
#include "model/config.h"
#include "model/slot_choice.h"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

TEST(StatePartsTest, PartsLieInOrderAndBeginAligned) {
  const StateParts state(
      3, {{"a", {2, 3}}, {"five", {5}}, {"empty", {4, 0}}, {"one", {1}}, {"b", {4}}});
  std::vector<std::pair<std::string, std::pair<size_t, size_t>>> places;
  for (const StatePart& part : state.parts) {
    places.emplace_back(part.name, std::pair(part.offset, part.floats));
  }
  // 24 bytes take 32, 20 take 32, 4 take 16.
  EXPECT_THAT(places, ::testing::ElementsAre(::testing::Pair("a", ::testing::Pair(0, 8)),
                                             ::testing::Pair("five", ::testing::Pair(8, 8)),
                                             ::testing::Pair("empty", ::testing::Pair(16, 0)),
                                             ::testing::Pair("one", ::testing::Pair(16, 4)),
                                             ::testing::Pair("b", ::testing::Pair(20, 4))));
  EXPECT_EQ(state.floats_per_layer, 24u);
  EXPECT_EQ(state.fixed_floats, 80u) << "three layers, and padding to 64 bytes";
  EXPECT_EQ(state.Find("five"), &state.parts[1]);
  EXPECT_EQ(state.Find("six"), nullptr);
}

// Layers 0 and 2 are recurrent, 1 and 2 attend.
TEST(StatePartsTest, KeysAndValuesLieBehindWhatDoesNotGrow) {
  const LayerMix mix = {{true, false, true}, {false, true, true}};
  const size_t head = size_t{64} * (8 + 16);
  const StateParts all(mix, {{"a", {5}}}, {.heads = 2, .key_dim = 8, .value_dim = 16});
  EXPECT_EQ(all.recurrent_at, (std::vector<size_t>{0, 0, 8}));
  EXPECT_EQ(all.fixed_floats, 16u);
  EXPECT_EQ(all.cache_offset, (std::vector<size_t>{0, 0, 2 * head}));
  EXPECT_EQ(all.block_floats, 4 * head);
  const StateSize size = all.size();
  EXPECT_EQ(size.At(0), 64u);
  EXPECT_EQ(size.At(1), 64u + 16 * head);
  EXPECT_EQ(size.At(64), size.At(1));
  EXPECT_EQ(size.At(65), 64u + 32 * head);
  EXPECT_TRUE(size.Fits(size.At(0), 100) && size.Fits(size.At(65), 100));
  EXPECT_FALSE(size.Fits(size.At(129), 100)) << "more than there is room for";
  EXPECT_FALSE(size.Fits(size.At(65) - 4, 100));
  EXPECT_FALSE(size.Fits(0, 100));

  const StateParts none({{false}, {true}}, {}, {2, 8, 16, 0});
  EXPECT_EQ(none.size().At(0), 64u) << "never empty";

  // The token of a block's first position sees window - 1 positions before it.
  for (const auto& [window, blocks] : {std::pair{1, 1}, {2, 2}, {65, 2}, {66, 3}, {129, 3}}) {
    const StateParts ring(mix, {{"a", {5}}}, {2, 8, 16, window});
    EXPECT_EQ(ring.attention->ring(), blocks) << window;
    EXPECT_EQ(ring.cache_offset[2] - ring.cache_offset[1], size_t(blocks) * 2 * head);
    EXPECT_EQ(ring.fixed_floats, 16 + size_t(blocks) * 4 * head);
    EXPECT_EQ(ring.block_floats, 0u);
    EXPECT_TRUE(ring.size().Fits(ring.size().At(1000), 0));
  }
}

TEST(SlotChoiceTest, AContextIsShorterBeforeSlotsAreFewer) {
  const StateSize size = {1000, 64 * 100};  // 100 bytes a token
  const auto context = [&](int64_t megabytes, int64_t most = 8192) {
    return AutoContext(megabytes * 1000000, size, most, 16);
  };
  EXPECT_EQ(context(1000), 8192);
  EXPECT_EQ(context(25), 5056) << "49 states of 506,000 bytes";
  EXPECT_EQ(context(1), 2048) << "fewer slots, not fewer tokens";
  EXPECT_EQ(context(1, 512), 512);
}

TEST(SlotChoiceTest, AContextForSlotsIsTheLargestThatLeavesThem) {
  // 500 bytes a token and 1000 more; 256 slots with 2,048 tokens take 263 MB.
  for (const int guards : {0, 1}) {
    const SlotRoom room = {100000000, {1000, 64 * 500}, 100000, "the test's memory", guards};
    for (const int slots : {1, 3, 7, 40}) {
      const auto context = ContextForSlots(slots, room);
      ASSERT_TRUE(context.ok()) << context.status();
      const auto given = [&](int64_t tokens) {
        const auto slot = int64_t(room.size.At(tokens));
        return AutoSlots(room.left_bytes - guards * slot, size_t(slot), room.memory).num_slots;
      };
      EXPECT_GE(given(*context), slots) << *context;
      if (slots > 1) {
        EXPECT_LT(given(*context + 64), slots) << *context;
      }
      EXPECT_EQ(room.SlotsAt(*context), given(*context));
    }
    const absl::Status refused = ContextForSlots(49, room).status();
    EXPECT_EQ(GetErrorDetail(refused).reason, "OUT_OF_MEMORY");
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("max-context is auto:49, but only 48 slots fit with a context of 2048"));
    EXPECT_EQ(*ContextForSlots(1, {100000000, room.size, 5000, "", guards}), 5000) << "no longer";
    EXPECT_EQ(*ContextForSlots(99, {100000000, room.size, 500, "", guards}), 500) << "few tokens";
  }
  const SlotRoom constant = {100000, {1000, 0}, 1 << 24, "the test's memory"};
  EXPECT_EQ(*ContextForSlots(50, constant), 0) << "no limit";
  EXPECT_THAT(std::string(ContextForSlots(51, constant).status().message()),
              HasSubstr("only 50 slots fit: slots take half of the 100000 bytes left of the test"));
}

TEST(SlotChoiceTest, TheTableEndsWithTheLongestContextOrTheFirstThatDoesNotFit) {
  const auto table = [](int64_t left, int64_t most) {
    return SlotsByContextText(SlotsByContext({left, {1000, 64 * 500}, most, ""}));
  };
  EXPECT_EQ(table(100000000, 40000), "8192: 12, 32768: 3, 40000: 2");
  EXPECT_EQ(table(100000000, 1 << 24), "8192: 12, 32768: 3, 131072: none");
  EXPECT_EQ(table(100000000, 131072), "8192: 12, 32768: 3, 131072: none");
  EXPECT_EQ(table(int64_t{1} << 40, 2048), "2048: 256");
  EXPECT_EQ(table(-5, 32768), "8192: none");
  EXPECT_TRUE(SlotsByContext({1000, {1000, 0}, 32768, ""}).empty());
}

ModelConfig Family(const std::string& name) {
  const auto text =
      ReadSmallFile(SourcePath("tests/conformance/family/" + name + "/config.json"), 1 << 20);
  const auto json = ParseSettings(*text);
  const auto config = ParseBlockConfig(*json);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(StateIdentityTest, IsAsTheFirstSnapshotsHaveIt) {
  const std::pair<const char*, const char*> identities[] = {
      {"delta-net",
       "delta_net layers 2 S 2 x 12 x 16 at 0 conv 4 x 80 at 384 shift 32 at 624 and 624 of 624 in "
       "1248"},
      {"gated-deltanet",
       "gated_deltanet layers 2 S 2 x 8 x 16 at 0 conv 4 x 64 at 256 shift 32 at 448 and 448 of "
       "448 in 896"},
      {"gated-deltanet-shared-keys",
       "gated_deltanet layers 2 S 6 x 4 x 6 at 0 conv 4 x 60 at 144 shift 32 at 324 and 324 of 324 "
       "in 656"},
      {"gla",
       "gla layers 2 S 2 x 8 x 16 at 0 conv 0 x 0 at 256 shift 32 at 256 and 256 of 256 in 512"},
      {"hgrn2",
       "hgrn2 layers 2 S 4 x 8 x 8 at 0 conv 0 x 0 at 256 shift 32 at 256 and 256 of 256 in 512"},
      {"kda",
       "kda layers 2 S 3 x 8 x 12 at 0 conv 4 x 84 at 288 shift 32 at 540 and 540 of 540 in 1088"},
      {"linear-attn",
       "linear_attn layers 2 S 2 x 8 x 20 at 0 conv 0 x 0 at 320 shift 32 at 320 and 320 of 320 in "
       "640"},
      {"mamba2-groups",
       "mamba2 layers 2 S 4 x 6 x 8 at 0 conv 3 x 56 at 192 shift 32 at 304 and 304 of 304 in "
       "608"},
      {"retnet",
       "retnet layers 2 S 2 x 8 x 20 at 0 conv 0 x 0 at 320 shift 32 at 320 and 320 of 320 in "
       "640"},
      {"rwkv7",
       "rwkv7 layers 2 S 2 x 16 x 16 at 0 conv 0 x 0 at 512 shift 32 at 512 and 544 of 576 in "
       "1152"},
  };
  for (const auto& [name, identity] : identities) {
    EXPECT_EQ(Family(name).state_identity().text, identity) << name;
  }
}

// Half of a float that is finite may be a 16-bit value that is not.
TEST(StateSizeTest, ValuesAreFiniteByTheTypeOfTheirPart) {
  const auto pair = [](uint32_t low, uint32_t high) {
    return std::bit_cast<float>(high << 16 | low);
  };
  const float f16_nan_low = pair(0x7e00, 0x3c00), f16_infinity_high = pair(0, 0x7c00),
              f32_infinity = pair(0, 0x7f80), bf16_nan_low = pair(0x7fc0, 0);
  const auto finite = [](kernels::CacheType type, std::vector<float> values, size_t begin = 0) {
    return StateSize{.fixed = 8, .per_block = 8, .kept_type = type, .cache_begin_bytes = 8}
        .AllFinite(values, begin);
  };
  using kernels::CacheType;
  for (const auto& [value, f32, f16, bf16] : {std::tuple{1.0f, true, true, true},
                                              {f16_nan_low, true, false, true},
                                              {f16_infinity_high, true, false, true},
                                              {bf16_nan_low, true, false, false},
                                              {f32_infinity, false, false, false}}) {
    EXPECT_EQ(finite(CacheType::kF32, {0, 0, value}), f32) << value;
    EXPECT_EQ(finite(CacheType::kF16, {0, 0, value}), f16) << value;
    EXPECT_EQ(finite(CacheType::kBf16, {0, 0, 0, value}), bf16) << value;
    EXPECT_EQ(finite(CacheType::kF16, {0, value}), f32) << value << " before keys and values";
    EXPECT_EQ(finite(CacheType::kF16, {value}, 8), f16) << value << " in a segment";
    EXPECT_EQ(finite(CacheType::kF16, {value}, 4), f32) << value;
  }
}

TEST(StateIdentityTest, NoPartIsLeftOut) {
  ModelConfig config = Family("gla");
  BlockKind kind = *config.block().kind;
  config.block().kind = &kind;
  kind.state = [](const ModelConfig&) -> std::vector<StatePart> {
    return {{"S", {2, 8, 16}}, {"ring", {3, 2}}};
  };
  EXPECT_EQ(config.state_identity().text,
            "gla layers 2 S 2 x 8 x 16 at 0 conv 0 x 0 at 256 shift 32 at 256 and 256 of 264 in "
            "528 ring 3 x 2 of 4 bytes at 256");
}

}  // namespace
}  // namespace rivulet
