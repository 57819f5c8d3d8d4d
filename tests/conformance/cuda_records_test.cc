// SPDX-License-Identifier: Apache-2.0
// The ring of records as the host reads it.
#include "model/cuda/cuda_records.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/cuda_emulator/cuda_emulator.h"

namespace rivulet {
namespace {

using kernels::CudaRecord;
using kernels::kRecordSequences;

class CudaRecordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_emulator::Reset();
    BackendLimits limits;
    limits.max_rows = limits.max_tokens = 4;
    auto records = CudaRecords::Create(limits, 2);
    ASSERT_TRUE(records.ok()) << records.status();
    records_ = *std::move(records);
    expected_.place = 1;
    expected_.row = 3;
    expected_.position = 17;
  }

  CudaRecords records_;
  CudaRecordOrder::Expected expected_;
  Record record_;
};

TEST_F(CudaRecordsTest, AWordAloneIsARecord) {
  const uint32_t sequence = records_.NextSequence();
  CudaRecord& written = records_.records()[1];
  written = {CudaRecord::Word(-5, kernels::kRecordStopped, sequence), 0.5f, 1};
  ASSERT_TRUE(records_.Take(expected_, &record_));
  EXPECT_EQ(record_.row, 3);
  EXPECT_EQ(record_.position, 17);
  EXPECT_EQ(record_.token, -5);
  EXPECT_TRUE(record_.stopped);
  EXPECT_FALSE(record_.non_finite);
  EXPECT_TRUE(std::isnan(record_.logprob)) << "what another record left";
  EXPECT_TRUE(record_.top.empty());
}

TEST_F(CudaRecordsTest, ALogprobComesWithItsFlag) {
  const uint32_t sequence = records_.NextSequence();
  records_.top()[2] = {7, -1.5f};
  const uint32_t flags = kernels::kRecordLogprob | kernels::kRecordNonFinite;
  records_.records()[1] = {CudaRecord::Word(9, flags, sequence), -0.5f, 1};
  ASSERT_TRUE(records_.Take(expected_, &record_));
  EXPECT_EQ(record_.logprob, -0.5f);
  EXPECT_TRUE(record_.non_finite);
  ASSERT_EQ(record_.top.size(), 1u);
  EXPECT_EQ(record_.top[0].token, 7);
}

// Sequences are short, so they come again; a record of the round before must not pass for a new
// one.
TEST_F(CudaRecordsTest, WhenSequencesComeAgainOldRecordsAreGone) {
  const uint32_t first = records_.NextSequence();
  records_.records()[1].word = CudaRecord::Word(9, 0, first);
  ASSERT_TRUE(records_.Take(expected_, &record_));
  uint32_t sequence = first;
  for (uint32_t i = 0; i < kRecordSequences; ++i) {
    sequence = records_.NextSequence();
    ASSERT_LT(sequence, kRecordSequences);
    if (sequence == first) break;
  }
  ASSERT_EQ(sequence, first);
  EXPECT_FALSE(records_.Take(expected_, &record_));
}

}  // namespace
}  // namespace rivulet
