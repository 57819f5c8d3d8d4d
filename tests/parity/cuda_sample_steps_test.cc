// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cuda/sample/sample_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_sampling.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_sample_steps_test {
namespace {

// Steps without the host: every kernel call takes the arrays that the one before wrote.
TEST(CudaSampleStepsTest, StepsFollowEachOtherOnTheDevice) {
  constexpr int kVocab = 37, kRows = 14, kSteps = 6, kRecordBase = 3, kLd = 40;
  const SampledHead head{kVocab, {}};
  const std::vector<float> outputs = RandomFloats(size_t(kSteps * kRows * kLd), 6, -1, 1);
  ForEachOrder([&](const CudaLaunch& launch) {
    std::vector<SampledSlot> slots = SlotsFor(kVocab);
    slots[2].stop_ids = {1, 4, 9, 16, 25, 36, 5, 6, 7};  // stops sooner or later
    for (size_t i = 10; i < 14; ++i) slots[i].penalties = true;
    slots[13].params = {.repetition_penalty = 0.8f, .frequency_penalty = -1.5f};
    std::vector<CudaOutputWork> work(kRows);
    std::vector<int32_t> tokens(kRows);
    for (int i = 0; i < kRows; ++i) {
      tokens[size_t(i)] = i;
      // Row 4 is padding; the others may draw 1 to 8 times.
      work[size_t(i)] = {
          10 + i, i, i, -1, 0, i == 4 ? 0 : 1 + i % 8, kRecordBase + i, kRecordBase + kRows + i,
          kRows,  5, 0};
    }
    const DeviceSlots device(slots, kVocab);
    const DeviceArray<CudaOutputWork> device_work(work);
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<int64_t> positions(kRows);
    const DeviceArray<CudaSegment> segments(std::vector<CudaSegment>(kRows, CudaSegment{}));
    const DeviceArray<float> device_outputs(outputs), scratch(size_t{kRows} * kLd);
    const DeviceArray<CudaRecord> records(kRecordBase + kRows * kSteps);
    for (int step = 0; step < kSteps; ++step) {
      CudaSampleArgs args;
      args.outputs = device_outputs.data() + step * kRows * kLd;
      args.rows = kRows;
      args.num_outputs = kVocab;
      args.ld_outputs = args.ld_scratch = kLd;
      args.work = device_work.data();
      args.fed = device_tokens.data();
      args.samplers = device.data();
      args.scratch = scratch.data();
      args.records = records.data();
      args.next = {device_tokens.data(), positions.data(), segments.data(), device_work.data()};
      ASSERT_EQ(SampleCuda(launch, args), cudaSuccess);
    }
    const std::vector<CudaRecord> got = records.Copy();
    const std::vector<CudaSegment> last = segments.Copy();
    const std::vector<int64_t> last_positions = positions.Copy();
    int differences = 0;
    for (int i = 0; i < kRows; ++i) {
      CudaOutputWork w = work[size_t(i)];
      SampledSlot& slot = slots[size_t(i)];
      int32_t fed = tokens[size_t(i)];
      bool stopped = w.draws_left == 0, same = true;
      for (int step = 0; step < kSteps; ++step) {
        const CudaRecord& r = got[size_t(kRecordBase + step * kRows + i)];
        if (stopped) {
          ASSERT_EQ(r.word, ~uint64_t{0}) << "row " << i << " went on at step " << step;
          continue;
        }
        ++slot.seen[size_t(fed)];
        const float* row_outputs = outputs.data() + (step * kRows + i) * kLd;
        const ExpectedDraw e = head.Draw(slot, row_outputs, w);
        ASSERT_EQ(r.sequence(), 5u);
        if (r.token() != e.token) {  // (never on the emulator)
          ++differences, same = false;
          break;
        }
        const uint32_t flags = r.flags() & ~kRecordLogprob;
        ASSERT_EQ(flags, e.flags);
        fed = r.token();
        w.position += 1;
        w.draws_left -= 1;
        stopped = flags != 0 || w.draws_left == 0;
      }
      if (!same) continue;
      ASSERT_EQ(last[size_t(i)].num_rows, stopped ? 0 : 1) << "row " << i;
      ASSERT_EQ(last[size_t(i)].slot, i == 4 ? 0 : i);
      if (!stopped) {
        ASSERT_EQ(device_tokens.Copy()[size_t(i)], fed);
        ASSERT_EQ(last_positions[size_t(i)], 10 + i + kSteps - 1);
      }
      if (!slot.penalties) continue;
      ASSERT_EQ(device.Seen(size_t(i)), slot.seen) << "row " << i;
    }
    ASSERT_LE(differences, AllowedDifferences(kRows));
  });
}

TEST(CudaSampleStepsTest, TokensOfSegmentsAreCounted) {
  constexpr int kVocab = 20;
  std::vector<SampledSlot> slots(3);
  for (SampledSlot& s : slots) s.penalties = true, s.seen.resize(kVocab);
  slots[1].penalties = false;
  const std::vector<int32_t> tokens = {3, 3, 19, 0, 7, 7, 7, 2};
  const std::vector<CudaSegment> segments = {
      {0, 0, 4, 0}, {1, 0, 4, 2}, {2, 4, 4, 1}, {2, 0, 0, 0}};
  ForEachOrder([&](const CudaLaunch& launch) {
    const DeviceSlots device(slots, kVocab);
    const DeviceArray<CudaSegment> device_segments(segments);
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<uint8_t> as_output(std::vector<uint8_t>{0, 1, 0});
    const CudaCountArgs args{device_segments.data(), 4, device_tokens.data(), as_output.data(),
                             device.data()};
    ASSERT_EQ(CountTokensCuda(launch, args), cudaSuccess);
    std::vector<uint32_t> prompt(kVocab), output(kVocab);
    for (const size_t t : {size_t{3}, size_t{19}, size_t{0}}) prompt[t] = kSeenInPrompt;
    output[7] = 3, output[2] = 1;
    EXPECT_EQ(device.Seen(0), prompt);
    EXPECT_EQ(device.Seen(1), std::vector<uint32_t>(kVocab));
    EXPECT_EQ(device.Seen(2), output);
  });
}

TEST(CudaSampleStepsTest, RecordsReachMappedHostMemory) {
  CudaRecord* records = nullptr;
  ASSERT_EQ(cudaHostAlloc(&records, sizeof(CudaRecord), cudaHostAllocMapped), cudaSuccess);
  *records = {};
  const DeviceArray<float> outputs(RandomFloats(8, 1)), scratch(8);
  CudaOutputWork work;
  work.position = 3;
  work.draws_left = 1;
  work.sequence = 44;
  const DeviceArray<CudaOutputWork> device_work(std::vector<CudaOutputWork>{work});
  const DeviceSlots slots(std::vector<SampledSlot>(1), 5);
  CudaSampleArgs args;
  args.outputs = outputs.data();
  args.rows = 1;
  args.num_outputs = 5;
  args.ld_outputs = args.ld_scratch = 8;
  args.work = device_work.data();
  args.samplers = slots.data();
  args.scratch = scratch.data();
  args.records = records;
  args.ld_scratch = 7;
  EXPECT_EQ(SampleCuda({}, args), cudaErrorInvalidValue) << "rows of whole float4 only";
  args.ld_scratch = 8;
  args.outputs = outputs.data() + 1;
  EXPECT_EQ(SampleCuda({}, args), cudaErrorInvalidValue) << "aligned rows only";
  args.outputs = outputs.data();
  ASSERT_EQ(SampleCuda({}, args), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(records->sequence(), 44u);
  EXPECT_LT(records->token(), 5);
  ASSERT_EQ(cudaFreeHost(records), cudaSuccess);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_sample_steps_test
