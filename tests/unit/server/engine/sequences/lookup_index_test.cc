// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/lookup_index.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <vector>

#include "server/engine/sequences/drafter.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> DraftsOf(LookupIndex* index, int most) {
  index->Search();
  std::vector<int32_t> drafts;
  index->AddDrafts(most, &drafts);
  return drafts;
}

TEST(LookupIndexTest, GoesOnWhereTheSameTokensWereBefore) {
  LookupIndex index;
  for (const int32_t token : {1, 2, 3, 4, 5, 9, 1, 2}) index.Push(token);
  EXPECT_THAT(DraftsOf(&index, 4), IsEmpty()) << "two tokens are too few";
  index.Push(3);
  EXPECT_THAT(DraftsOf(&index, 4), ElementsAre(4, 5, 9, 1));
  index.Push(4);
  index.Push(6);
  EXPECT_THAT(DraftsOf(&index, 4), IsEmpty()) << "it went on otherwise";
}

TEST(LookupIndexTest, RepeatsWhatRepeatsItself) {
  LookupIndex index;
  for (int i = 0; i < 5; ++i) index.Push(7);
  EXPECT_THAT(DraftsOf(&index, 3), ElementsAre(7, 7, 7));
}

TEST(LookupIndexTest, PrefersTheLongerMatchAndThenTheLater) {
  LookupIndex index;
  for (const int32_t token : {8, 1, 2, 3, 50, 9, 1, 2, 3, 60, 7, 1, 2, 3, 70}) index.Push(token);
  for (const int32_t token : {9, 1, 2, 3}) index.Push(token);
  EXPECT_THAT(DraftsOf(&index, 1), ElementsAre(60));
  for (const int32_t token : {5, 1, 2, 3}) index.Push(token);
  EXPECT_THAT(DraftsOf(&index, 1), ElementsAre(5)) << "as the last time";
}

TEST(LookupIndexTest, FollowsAPredictionAndFindsItsPlaceAgain) {
  LookupIndex index;
  for (const int32_t token : {10, 11, 12, 13, 14, 15, 16, 17}) index.Push(token);
  index.EndPrediction();
  for (const int32_t token : {1, 2, 3}) index.Push(token);
  index.BeginReply();
  EXPECT_THAT(DraftsOf(&index, 2), ElementsAre(10, 11));
  for (const int32_t token : {10, 99, 12, 13}) index.Push(token);
  EXPECT_THAT(DraftsOf(&index, 2), IsEmpty());
  index.Push(14);
  EXPECT_THAT(DraftsOf(&index, 9), ElementsAre(15, 16, 17)) << "no draft behind its end";
}

TEST(LookupIndexTest, FindsThePlaceAmongManyTokens) {
  LookupIndex index;
  std::minstd_rand random(1);
  std::vector<int32_t> tokens(100'000);
  for (int32_t& token : tokens) index.Push(token = static_cast<int32_t>(random() % 50'000));
  for (const size_t at : {size_t{1}, tokens.size() / 2, tokens.size() - 8}) {
    for (size_t i = 0; i < 3; ++i) index.Push(tokens[at + i]);
    EXPECT_THAT(DraftsOf(&index, 1), ElementsAre(tokens[at + 3])) << at;
  }
}

TEST(LookupIndexTest, ForgetsOldTokens) {
  LookupIndex index;
  for (const int32_t token : {1, 2, 3, 4}) index.Push(token);
  std::minstd_rand random(1);
  for (size_t i = 0; i < LookupIndex::kMostTokens; ++i) {
    index.Push(static_cast<int32_t>(10 + random() % 100'000));
    if (i % 1000 == 0) DraftsOf(&index, 1);
  }
  for (const int32_t token : {1, 2, 3}) index.Push(token);
  EXPECT_THAT(DraftsOf(&index, 1), IsEmpty());
}

TEST(DrafterTest, LearnsALongPromptInPiecesAndThenWhatWasDrawn) {
  std::vector<int32_t> given(10'000);
  for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<int32_t>(i % 5000);
  const Speculation asked;
  Drafter drafter(asked);
  drafter.OnDrawn(0);  // as token 5,000 of the prompt
  int pieces = 0;
  while (drafter.View(8).most == 0) {
    drafter.BeginRow(given, true);
    ASSERT_LE(++pieces, 20);
  }
  EXPECT_EQ(pieces, 20);
  std::vector<int32_t> drafts;
  drafter.AddDrafts(2, &drafts);
  EXPECT_THAT(drafts, ElementsAre(1, 2));
  drafter.OnDrawn(77);
  EXPECT_EQ(drafter.View(8).most, 0);

  // Beside many rows it only notes what is drawn.
  drafter.BeginRow(given, false);
  for (int i = 10; i < 610; ++i) drafter.OnDrawn(i);
  EXPECT_EQ(drafter.View(8).most, 0);
  drafter.BeginRow(given, true);
  EXPECT_EQ(drafter.View(8).most, 0) << "a piece of it";
  drafter.BeginRow(given, true);
  drafter.AddDrafts(2, &drafts);
  EXPECT_THAT(drafts, ElementsAre(1, 2, 610, 611));
}

}  // namespace
}  // namespace rivulet
