// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cuda/sample/sample_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_sampling.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_sample_test {
namespace {

int RoundUp4(int n) { return (n + 3) / 4 * 4; }

// One kernel call over rows of outputs [rows, n], row i with slot i mod slots.
struct Call {
  Call(const SampledHead& h, int count)
      : head(h), rows(count), ld(RoundUp4(h.num_outputs)), work(size_t(count)) {}

  void Run(const CudaLaunch& launch, const DeviceSlots& slots) {
    // What lies between rows must not count.
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (int(i % size_t(ld)) >= head.num_outputs) outputs[i] = std::nanf("");
    }
    const DeviceArray<float> device_outputs(outputs);
    const int ld_scratch = RoundUp4(head.tokens());
    const DeviceArray<float> scratch(size_t(rows) * size_t(ld_scratch));
    const DeviceArray<CudaOutputWork> device_work(work);
    const DeviceArray<CudaRecord> device_records(size_t(rows) * 2);
    const DeviceArray<CudaTopLogprob> device_top(size_t(rows) * 2 * kTopStride);
    CudaSampleArgs args;
    args.outputs = device_outputs.data();
    args.rows = rows;
    args.num_outputs = head.num_outputs;
    args.ld_outputs = ld;
    args.mixture = head.mixture;
    args.work = device_work.data();
    args.samplers = slots.data();
    args.scratch = scratch.data();
    args.ld_scratch = ld_scratch;
    args.records = device_records.data();
    args.top = device_top.data();
    args.top_stride = kTopStride;
    ASSERT_EQ(SampleCuda(launch, args), cudaSuccess);
    records = device_records.Copy();
    weights = scratch.Copy();
    top = device_top.Copy();
  }

  SampledHead head;
  int rows, ld;
  std::vector<float> outputs;
  std::vector<CudaOutputWork> work;
  std::vector<CudaRecord> records;
  std::vector<CudaTopLogprob> top;
  std::vector<float> weights;  // [rows, ld], of token rows with filters
};

// The weights of a row, within units in the last place of the exact ones.
void CompareWeights(const std::vector<float>& exact, const float* weights) {
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(weights[i], exact[i], kWeightTolerance * exact[i] + 1e-37f) << "token " << i;
  }
}

void CompareDraw(const Call& call, int row, const ExpectedDraw& e, int* differences) {
  const CudaRecord& r = call.records[size_t(call.work[size_t(row)].draw_record)];
  ASSERT_EQ(r.sequence(), call.work[size_t(row)].sequence);
  if (r.token() != e.token) {
    ++*differences;
    return;
  }
  const bool has_logprob = !std::isnan(e.logprob);
  ASSERT_EQ(r.flags(), e.flags | (has_logprob ? kRecordLogprob : 0)) << "row " << row;
  if (has_logprob) {
    ASSERT_NEAR(r.logprob, e.logprob, kLogprobTolerance);
    ASSERT_EQ(r.num_top, e.num_top);
  }
  for (size_t i = 0; i < e.top.size(); ++i) {
    const CudaTopLogprob& t = call.top[size_t(call.work[size_t(row)].draw_record) * kTopStride + i];
    ASSERT_NEAR(t.logprob, e.top[i].logprob, kLogprobTolerance) << "row " << row << " rank " << i;
    if (t.token != e.top[i].token) ++*differences;
  }
}

// Rows that draw, score, or both, in turn, against the host.
void CheckHead(const SampledHead& head, const std::vector<SampledSlot>& slots, int rows,
               float spread) {
  ForEachOrder([&](const CudaLaunch& launch) {
    Call call(head, rows);
    call.outputs = RandomFloats(size_t(rows) * size_t(call.ld), 3, -spread, spread);
    for (int i = 0; i < rows; ++i) {
      CudaOutputWork& w = call.work[size_t(i)];
      w.position = 1000 + i * 7;
      w.slot = i % int(slots.size());
      w.row = i * 2;
      w.target = i % 3 == 1 ? -1 : (i * 13) % head.tokens();
      w.target_record = 2 * i;
      w.draws_left = i % 3 == 2 ? 0 : 1;
      w.draw_record = 2 * i + 1;
      w.sequence = kRecordSequences - 1;  // all its bits
    }
    const DeviceSlots device(slots, head.tokens());
    call.Run(launch, device);
    int differences = 0;
    for (int i = 0; i < rows; ++i) {
      const CudaOutputWork& w = call.work[size_t(i)];
      const float* outputs = call.outputs.data() + size_t(i) * size_t(call.ld);
      const CudaRecord& scored = call.records[size_t(w.target_record)];
      if (w.target < 0) {
        ASSERT_EQ(scored.word, ~uint64_t{0}) << "a record nobody asked for";
      } else {
        ASSERT_EQ(scored.sequence(), w.sequence);
        ASSERT_EQ(scored.token(), w.target);
        ASSERT_EQ(scored.flags(), kRecordScored | kRecordLogprob);
        ASSERT_EQ(scored.num_top, 0);
        ASSERT_NEAR(scored.logprob, head.LogProb(outputs, w.target), kLogprobTolerance);
      }
      if (w.draws_left == 0) {
        ASSERT_EQ(call.records[size_t(w.draw_record)].word, ~uint64_t{0});
      } else {
        const SampledSlot& slot = slots[size_t(w.slot)];
        const bool filters = head.mixture.mixtures == 0 && Filters(slot.params, head.num_outputs);
        const float* weights = call.weights.data() + size_t(i) * size_t(call.ld);
        if (filters) CompareWeights(head.Weights(slot, outputs), weights);
        CompareDraw(call, i, head.Draw(slot, outputs, w, filters ? weights : nullptr),
                    &differences);
      }
    }
    ASSERT_LE(differences, AllowedDifferences(rows)) << "tokens " << head.tokens();
  });
}

TEST(CudaSampleTest, CategoricalDrawsAndScoresAreThoseOfTheHost) {
  for (const int vocab : {1, 2, 5, 37, 65, 128, 129, 257}) {
    CheckHead({vocab, {}}, SlotsFor(vocab), vocab > 200 ? 28 : 84, 3);
  }
}

TEST(CudaSampleTest, ALargeVocabularyIsSampledAsOnTheHost) {
  CheckHead({50257, {}}, SlotsFor(50257), 28, 6);
}

TEST(CudaSampleTest, TiesAndEqualLogitsAreCutById) {
  for (const int vocab : {64, 300}) {
    std::vector<SampledSlot> slots = SlotsFor(vocab);
    CheckHead({vocab, {}}, slots, 28, 0);  // all logits zero
  }
}

// Logits that hardly differ have thresholds in the last of their digits, and each weight that a
// filter wrongly keeps or drops moves half of the draws by an id. Equal ones add up to more than 32
// bits in a bin. Where they differ much, most weights are tiny or zero.
TEST(CudaSampleTest, FiltersKeepWhatTheHostKeeps) {
  constexpr int kVocab = 3001;
  const CategoricalParams filters[] = {
      {.top_k = 1000},
      {.top_k = 2},
      {.top_k = kVocab - 1},
      {.top_p = 0.3f},
      {.top_p = 0.999f},
      {.min_p = 0.9997f},
      {.temperature = 0.7f, .top_k = 2000, .top_p = 0.5f},
      {.temperature = 0},
      {.top_k = 500, .top_p = 0.9999f, .min_p = 0.5f, .banned = 3}};
  std::vector<SampledSlot> slots;
  for (const CategoricalParams& params : filters) {
    slots.emplace_back().params = params;
    slots.back().seed = 40 + slots.size();
  }
  // Weights then take the place of the adjusted logits.
  slots.push_back(slots[0]);
  slots.back().bias = {{7, 0.25f}, {kVocab - 1, -1.0f}};
  slots.push_back(slots[6]);
  slots.back().penalties = true;
  slots.back().params.presence_penalty = 0.001f;
  for (int t = 0; t < kVocab; ++t) slots.back().seen.push_back(uint32_t(t % 2));
  for (const float spread : {0.0f, 1e-6f, 1e-3f, 0.5f, 5.0f, 60.0f}) {
    SCOPED_TRACE(spread);
    CheckHead({kVocab, {}}, slots, 3 * int(slots.size()), spread);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(CudaSampleTest, MixtureDrawsAndScoresAreThoseOfTheHost) {
  for (const bool elu : {false, true}) {
    for (const int mixtures : {1, 10, 700}) {
      std::vector<SampledSlot> slots(6);
      for (size_t i = 0; i < slots.size(); ++i) {
        slots[i].seed = 5 + i;
        slots[i].params.temperature = i == 0 ? 0.0f : i == 1 ? 0.6f : 1.0f;
        slots[i].want_logprobs = i >= 2;
        slots[i].num_top = i == 3 ? 5 : i == 4 ? 1 : 0;
        slots[i].stop_ids = {255, 0};
      }
      CheckHead({3 * mixtures, {mixtures, 256, elu, 128}}, slots, mixtures > 10 ? 6 : 60, 2);
    }
  }
}

TEST(CudaSampleTest, StrangeOutputsEndTheRowAndAreNotSampled) {
  const std::vector<SampledSlot> slots(1);
  for (const int vocab : {37, 5001}) {
    ForEachOrder([&](const CudaLaunch& launch) {
      Call call({vocab, {}}, 3);
      call.outputs = RandomFloats(size_t(3 * call.ld), 4);
      call.outputs[size_t(vocab) - 1] = std::numeric_limits<float>::quiet_NaN();
      call.outputs[size_t(call.ld) + 2] = std::numeric_limits<float>::infinity();
      for (int i = 0; i < 3; ++i) {
        call.work[size_t(i)].draws_left = 4;
        call.work[size_t(i)].target = 1;
        call.work[size_t(i)].target_record = 2 * i;
        call.work[size_t(i)].draw_record = 2 * i + 1;
      }
      call.Run(launch, DeviceSlots(slots, vocab));
      for (int i = 0; i < 3; ++i) {
        const uint32_t strange = i < 2 ? kRecordNonFinite : 0;
        const uint32_t scored = i < 2 ? kRecordNonFinite : kRecordLogprob;
        EXPECT_EQ(call.records[size_t(2 * i)].flags(), kRecordScored | scored);
        EXPECT_EQ(call.records[size_t(2 * i + 1)].flags(), strange);
      }
    });
  }
}

// A token that is never drawn has a probability all the same.
TEST(CudaSampleTest, ALikelyTokenThatIsBannedCountsInLogProbabilities) {
  const SampledHead head{5, {}};
  std::vector<SampledSlot> slots(1);
  slots[0].params.banned = 4;
  ForEachOrder([&](const CudaLaunch& launch) {
    Call call(head, 1);
    call.outputs = {0.5f, 1, 2, -1, 300, 0, 0, 0};
    call.work[0] = {50, 0, 0, 1, 0, 0, 0, 0, 0, 5, 0};
    call.Run(launch, DeviceSlots(slots, 5));
    EXPECT_NEAR(call.records[0].logprob, -299, kLogprobTolerance);
  });
}

// As in the kernel of few rows, whose blocks are smaller.
TEST(CudaSampleTest, ARowDrawsTheSameWithAnyNumberOfThreads) {
  for (const int vocab : {300, 2500}) {
    const int rows = 14;
    std::vector<CudaRecord> records;
    std::vector<CudaTopLogprob> top;
    for (const int threads : {128, 32, 512}) {
      SCOPED_TRACE(threads);
      Call call({vocab, {}}, rows);
      call.outputs = RandomFloats(size_t(rows) * size_t(call.ld), 9, -4, 4);
      for (int i = 0; i < rows; ++i) {
        call.work[size_t(i)] = {50 + i, i, i, i, 2 * i, 1, 2 * i + 1, 0, 0, 5, 0};
      }
      SetCudaSampleThreadsForTest(threads);
      call.Run({}, DeviceSlots(SlotsFor(vocab), vocab));
      SetCudaSampleThreadsForTest(0);
      if (records.empty()) records = call.records, top = call.top;
      ASSERT_EQ(
          std::memcmp(records.data(), call.records.data(), records.size() * sizeof(records[0])), 0);
      ASSERT_EQ(std::memcmp(top.data(), call.top.data(), top.size() * sizeof(top[0])), 0);
    }
  }
}

TEST(CudaSampleTest, ARowDrawsTheSameInAnyCompany) {
  const SampledHead head{300, {}};
  const std::vector<SampledSlot> slots = SlotsFor(300);
  std::vector<float> outputs = RandomFloats(size_t(5 * 300), 8, -4, 4);
  std::vector<CudaRecord> alone;
  ForEachOrder([&](const CudaLaunch& launch) {
    for (int rows : {1, 5}) {
      Call call(head, rows);
      // The row in question comes last.
      call.outputs.assign(outputs.end() - rows * call.ld, outputs.end());
      for (int i = 0; i < rows; ++i) {
        const bool mine = i == rows - 1;
        call.work[size_t(i)] = {50, mine ? 6 : i, 0, -1, 0, 1, mine ? 0 : 1 + i, 0, 0, 5, 0};
      }
      const DeviceSlots device(slots, 300);
      call.Run(launch, device);
      alone.push_back(call.records[0]);
      ASSERT_EQ(std::memcmp(&alone.front(), &alone.back(), sizeof(CudaRecord)), 0);
    }
  });
}

}  // namespace
}  // namespace rivulet::kernels::cuda_sample_test
