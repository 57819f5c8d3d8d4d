// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/part_json.h"

#include <gtest/gtest.h>

#include <limits>

namespace rivulet {
namespace {

TEST(PartJsonTest, HoldsWhatIsSetAndNothingElse) {
  v1::GenerateReply part;
  part.set_sample_index(1);
  part.set_first_position(7);
  part.add_tokens(5);
  EXPECT_EQ(PartJson(part), "{\"sample_index\":1,\"first_position\":7,\"tokens\":[5]}\n");
}

TEST(PartJsonTest, HoldsEveryField) {
  v1::GenerateReply part;
  part.set_seed(UINT64_MAX);
  part.add_tokens(5);
  part.set_text("a\"\n\u00e9");
  part.add_logprobs(-0.1f);
  auto* const top = part.add_top_logprobs();
  top->add_token_ids(5);
  top->add_token_ids(6);
  top->add_logprobs(-0.1f);
  top->add_logprobs(-std::numeric_limits<float>::infinity());
  part.mutable_finish()->set_reason(v1::FINISH_REASON_STOP_TOKEN);
  part.mutable_finish()->set_stop_token_id(9);
  part.mutable_usage()->set_prompt_tokens(3);
  part.mutable_usage()->set_cached_prompt_tokens(2);
  part.mutable_usage()->set_drafted_tokens(8);
  part.mutable_usage()->set_accepted_tokens(3);
  part.mutable_usage()->mutable_total_time()->set_nanos(500'000'000);
  EXPECT_EQ(PartJson(part),
            "{\"sample_index\":0,\"first_position\":0,\"tokens\":[5],\"seed\":18446744073709551615,"
            "\"text\":\"a\\\"\\n\u00e9\",\"logprobs\":[-0.1],"
            "\"top_logprobs\":[{\"token_ids\":[5,6],\"logprobs\":[-0.1,null]}],"
            "\"finish\":{\"reason\":\"stop_token\",\"stop_token_id\":9},"
            "\"usage\":{\"prompt_tokens\":3,\"cached_prompt_tokens\":2,\"completion_tokens\":0,"
            "\"drafted_tokens\":8,\"accepted_tokens\":3,\"queue_seconds\":0,"
            "\"first_token_seconds\":0,\"total_seconds\":0.5}}\n");
  EXPECT_EQ(DraftsSummary(part.usage()), ", 3 of 8 drafts accepted");
  EXPECT_EQ(DraftsSummary({}), "");
}

TEST(PartJsonTest, ASessionsPlaceAndDurabilityAreTold) {
  v1::GenerateReply part;
  part.mutable_session()->set_position(12);
  part.mutable_session()->set_sequence_hash(0xabc);
  part.mutable_durability()->set_position(9);
  part.mutable_durability()->set_other_numerics_id("\"cpu");
  EXPECT_EQ(
      PartJson(part),
      "{\"sample_index\":0,\"first_position\":0,\"tokens\":[],"
      "\"session\":{\"position\":12,\"sequence_hash\":\"0000000000000abc\"},"
      "\"durability\":{\"durable\":false,\"position\":9,\"other_numerics_id\":\"\\\"cpu\"}}\n");
}

}  // namespace
}  // namespace rivulet
