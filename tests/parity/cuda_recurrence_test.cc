// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/cuda/blocks/recurrence_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuts.h"
#include "tests/support/recurrence_case.h"

namespace rivulet::kernels::cuda_recurrence_test {
namespace {

constexpr int kHeads = 2, kTokens = 5, kSlots = 4, kLayerFloats = 8;  // in front of S

// Sequence i has slot i and token rows from i kTokens on.
struct Case : RecurrenceCase {
  explicit Case(const RecurrenceCase& c) : RecurrenceCase(c) {}
  Case(UpdateRule which, int decays, int keys, int values)
      : RecurrenceCase(which, decays, keys, values, kTokens, kHeads, kSlots, kLayerFloats) {}

  // All but segments, states and y, from rows at `from`.
  CudaRecurrenceArgs CudaArgs(const float* from, const float* skips) const {
    CudaRecurrenceArgs args;
    args.rule = rule;
    args.heads = kHeads;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.w_dim = w_dim;
    args.q = {from, ld(), shared_keys ? 0 : key_dim};
    args.k = {from + k(), ld(), shared_keys ? 0 : key_dim};
    if (shared_keys) args.heads_per_key = kHeads;
    args.v = {from + v(), ld(), value_dim};
    if (w_dim > 0) args.w = {from + w(), ld(), w_dim};
    if (rule == UpdateRule::kDelta || steps) args.beta = {from + beta(), ld(), 1};
    if (rule == UpdateRule::kRankOne) {
      args.a = {from + a(), ld(), key_dim};
      args.b = {from + b(), ld(), key_dim};
    }
    args.q_scale = q_scale;
    args.beta_scale = beta_scale;
    args.skip = steps ? skips : nullptr;
    args.floats_per_slot = floats_per_slot();
    args.s_offset = kLayerFloats;
    args.ld_y = ld_y();
    return args;
  }

  float q_scale = 1, beta_scale = 1;
  bool steps = false;        // kDecay with beta and skip
  bool shared_keys = false;  // of both heads
  std::vector<float> skip = RandomFloats(kHeads, 9);
};

// `tokens[i]` of sequence i.
RowsAndStates ExpectedOf(const Case& c, const std::array<int, kSlots>& tokens) {
  RowsAndStates result = Start(c);
  for (int slot = 0; slot < kSlots; ++slot) {
    for (int h = 0; h < kHeads; ++h) {
      RecurrenceArgs args =
          c.Args(slot, 0, tokens[size_t(slot)], result.y.data(), result.states.data(), h);
      const float *const v = args.v.data, *const beta = c.rows.data() + c.beta() + h;
      std::vector<float> values, betas;
      for (int t = 0; t < args.tokens; ++t) {
        betas.push_back(c.beta_scale * beta[(slot * kTokens + t) * c.ld()]);
        for (int i = 0; i < c.value_dim; ++i)
          values.push_back((c.steps ? betas.back() : 1) * v[t * c.ld() + i]);
      }
      args.v = {values.data(), size_t(c.value_dim)};
      if (c.rule == UpdateRule::kDelta) args.beta = {betas.data(), 1};
      if (c.shared_keys) args.q.data -= h * c.key_dim, args.k.data -= h * c.key_dim;
      RecurrenceRef(args);
      for (int t = 0; t < args.tokens; ++t) {
        for (int i = 0; i < c.value_dim; ++i) {
          float& y = args.y[size_t(t) * args.y_stride + size_t(i)];
          y *= c.q_scale;
          if (c.steps) y += c.skip[size_t(h)] * v[t * c.ld() + i];
        }
      }
    }
  }
  return result;
}

// Launches as for machines on which segments are many, then few: the warps take many columns, then
// few.
template <class F>
void ForEachWidth(CudaLaunch launch, const F& f) {
  for (const int multiprocessors : {0, 1000}) {
    launch.multiprocessors = multiprocessors;
    f(launch);
  }
}

// The passes one after another, each with its segments.
RowsAndStates RunCuda(const CudaLaunch& launch, const Case& c,
                      const std::vector<std::vector<CudaSegment>>& passes) {
  const DeviceArray<float> rows(c.rows), skip(c.skip), y(Start(c).y), states(c.states);
  for (const std::vector<CudaSegment>& pass : passes) {
    const DeviceArray<CudaSegment> segments(pass);
    CudaRecurrenceArgs args = c.CudaArgs(rows.data(), skip.data());
    args.segments = segments.data();
    args.num_segments = int(pass.size());
    args.states = states.data();
    args.y = y.data();
    EXPECT_EQ(CheckRecurrenceCuda(args), nullptr);
    EXPECT_EQ(RecurrenceCuda(launch, args), cudaSuccess);
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  }
  return {y.Copy(), states.Copy()};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const RecurrenceCase& c : RecurrenceCases(kHeads, kSlots, kLayerFloats, kTokens)) {
    // The larger shapes have the same code for every w, except for a single one of many keys.
    const bool other = c.key_dim <= 16 || (c.key_dim == 64 && c.w_dim == 1);
    if (c.w_dim == c.key_dim || other) cases.emplace_back(c);
  }
  Case mamba2(UpdateRule::kDecay, 1, 12, 20);
  mamba2.steps = mamba2.shared_keys = true;
  cases.push_back(mamba2);
  Case doubled(UpdateRule::kDelta, 1, 12, 20);
  doubled.beta_scale = 2;
  doubled.q_scale = 0.25f;
  cases.push_back(doubled);
  return cases;
}

CudaSegment Tokens(int slot, int first, int count) {
  return {slot, slot * kTokens + first, count, 0};
}

TEST(CudaRecurrenceTest, EveryShapeMatchesTheReferenceAndLeavesOtherSlotsAndRowsAlone) {
  for (const Case& c : Cases()) {
    const RowsAndStates expected = ExpectedOf(c, {3, 0, 5, 0});
    const auto check = [&](const CudaLaunch& launch) {
      const RowsAndStates result =
          RunCuda(launch, c, {{Tokens(2, 0, 5), Tokens(1, 0, 0), Tokens(0, 0, 3)}});
      ASSERT_TRUE(Near(result.y, expected.y, 1e-5)) << Name(c);
      ASSERT_TRUE(Near(result.states, expected.states, 1e-5)) << Name(c);
      for (const size_t slot : {1, 3}) {
        for (size_t i = slot * c.floats_per_slot(); i < (slot + 1) * c.floats_per_slot(); ++i)
          ASSERT_EQ(result.states[i], c.states[i]) << Name(c) << " slot " << slot;
      }
    };
    ForEachOrder([&](const CudaLaunch& launch) { ForEachWidth(launch, check); });
  }
}

TEST(CudaRecurrenceTest, ARowHasTheSameBitsPrefilledOrSteppedInAnyCompany) {
  for (const Case& c : Cases()) {
    RowsAndStates alone;
    const auto check_alone = [&](const CudaLaunch& launch) {
      const RowsAndStates result = RunCuda(launch, c, {{Tokens(1, 0, 5)}});
      if (alone.y.empty()) alone = result;
      ASSERT_TRUE(SameBits(result.y, alone.y)) << Name(c);
      ASSERT_TRUE(SameBits(result.states, alone.states)) << Name(c);
    };
    ForEachOrder([&](const CudaLaunch& launch) { ForEachWidth(launch, check_alone); });
    std::vector<std::vector<CudaSegment>> steps;
    for (int t = 0; t < kTokens; ++t) {
      // Others come and go, in other places.
      steps.push_back({Tokens(1, t, 1)});
      if (t % 2 == 0) steps.back().insert(steps.back().begin(), Tokens(3, t, 1));
      if (t % 3 == 0) steps.back().push_back(Tokens(0, t, 1));
    }
    const auto part = [](const std::vector<float>& all) {
      const auto size = std::ptrdiff_t(all.size()) / kSlots;
      return std::vector<float>(all.begin() + size, all.begin() + 2 * size);
    };
    ForEachWidth({}, [&](const CudaLaunch& launch) {
      const RowsAndStates stepped = RunCuda(launch, c, steps);
      ASSERT_TRUE(SameBits(part(stepped.y), part(alone.y))) << Name(c);
      ASSERT_TRUE(SameBits(part(stepped.states), part(alone.states))) << Name(c);
    });
  }
}

TEST(CudaRecurrenceTest, RefusesWhatTheHeaderDoesNotAllow) {
  const Case c(UpdateRule::kRankOne, 8, 8, 20);
  float memory[16] = {};
  CudaSegment segment;
  const auto refused = [&](const auto& change) {
    CudaRecurrenceArgs args = c.CudaArgs(c.rows.data(), nullptr);
    args.segments = &segment;
    args.num_segments = 1;
    args.states = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory) + 15) / 16 * 16);
    args.y = memory;
    change(args);
    return CheckRecurrenceCuda(args) != nullptr;
  };
  using Args = CudaRecurrenceArgs;
  EXPECT_FALSE(refused([](Args&) {}));
  EXPECT_TRUE(refused([](Args& a) { a.key_dim = a.w_dim = 513; }));
  EXPECT_TRUE(refused([](Args& a) { a.heads_per_key = 3; }));
  EXPECT_TRUE(refused([](Args& a) { a.w_dim = 7; }));
  EXPECT_TRUE(refused([](Args& a) { a.b = {}; }));
  EXPECT_TRUE(refused([](Args& a) { a.beta = a.q; }));
  EXPECT_TRUE(refused([](Args& a) { a.skip = a.y; }));
  EXPECT_TRUE(refused([](Args& a) { a.states += 1; }));
  EXPECT_TRUE(refused([](Args& a) { a.ld_y = 39; }));
}

}  // namespace
}  // namespace rivulet::kernels::cuda_recurrence_test
