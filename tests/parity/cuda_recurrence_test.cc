// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <tuple>

#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/cuda/blocks/recurrence_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

constexpr int kHeads = 2, kTokens = 5, kSlots = 4, kLayerFloats = 8;  // in front of S

// Token rows [q | k | v | w | beta | a | b], each of all heads, with kTokens rows a sequence.
struct Case {
  Case(UpdateRule which, int decays, int keys, int values)
      : rule(which), w_dim(decays), key_dim(keys), value_dim(values) {
    ld = kHeads * (5 * keys + values + 1) + 3;
    floats_per_slot = size_t((kLayerFloats + kHeads * keys * values + 15) / 16 * 16);
    // |S| stays bounded: decays in [0.7, 1], vectors of length below 1.
    const float length = 1 / std::sqrt(float(keys));
    rows = RandomFloats(size_t(kSlots * kTokens * ld), 7);
    for (int r = 0; r < kSlots * kTokens; ++r) {
      float* const row = rows.data() + r * ld;
      for (int i = 0; i < v(); ++i) row[i] *= length;
      for (int i = w(); i < beta(); ++i) row[i] = 0.85f + 0.15f * row[i];
      for (int i = beta(); i < a(); ++i) row[i] = 0.5f + 0.5f * row[i];
      for (int i = a(); i < a() + 2 * kHeads * keys; ++i) row[i] *= 0.7f * length;
    }
    states = RandomFloats(kSlots * floats_per_slot, 8);
    skip = RandomFloats(kHeads, 9);
  }
  int k() const { return kHeads * key_dim; }
  int v() const { return 2 * k(); }
  int w() const { return v() + kHeads * value_dim; }
  int beta() const { return w() + k(); }
  int a() const { return beta() + kHeads; }
  int ld_y() const { return kHeads * value_dim + 2; }
  bool with_beta() const { return rule == UpdateRule::kDelta || steps; }

  // All but segments, states and y, from rows at `from`.
  CudaRecurrenceArgs Args(const float* from, const float* skips) const {
    CudaRecurrenceArgs args;
    args.rule = rule;
    args.heads = kHeads;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.w_dim = w_dim;
    args.q = {from, ld, shared_keys ? 0 : key_dim};
    args.k = {from + k(), ld, shared_keys ? 0 : key_dim};
    if (shared_keys) args.heads_per_key = kHeads;
    args.v = {from + v(), ld, value_dim};
    if (w_dim > 0) args.w = {from + w(), ld, w_dim};
    if (with_beta()) args.beta = {from + beta(), ld, 1};
    if (rule == UpdateRule::kRankOne) {
      args.a = {from + a(), ld, key_dim};
      args.b = {from + a() + k(), ld, key_dim};
    }
    args.q_scale = q_scale;
    args.beta_scale = beta_scale;
    args.skip = steps ? skips : nullptr;
    args.floats_per_slot = floats_per_slot;
    args.s_offset = kLayerFloats;
    args.ld_y = ld_y();
    return args;
  }

  UpdateRule rule;
  int w_dim, key_dim, value_dim, ld = 0;
  float q_scale = 1, beta_scale = 1;
  bool steps = false;        // kDecay with beta and skip
  bool shared_keys = false;  // of both heads
  size_t floats_per_slot = 0;
  std::vector<float> rows, states, skip;
};

struct Result {
  std::vector<float> y, states;
};

std::vector<float> Untouched(const Case& c) {
  return std::vector<float>(size_t(kSlots * kTokens * c.ld_y()), 0.0f);
}

// Sequence i has slot i and token rows from i kTokens on: `tokens[i]` of them.
Result Expected(const Case& c, const std::array<int, kSlots>& tokens) {
  Result result = {Untouched(c), c.states};
  for (int slot = 0; slot < kSlots; ++slot) {
    for (int h = 0; h < kHeads; ++h) {
      const float* const row = c.rows.data() + slot * kTokens * c.ld;
      const auto stride = size_t(c.ld);
      const int key_head = c.shared_keys ? 0 : h;
      std::vector<float> values;
      for (int t = 0; t < tokens[size_t(slot)]; ++t) {
        const float* const v = row + t * c.ld + c.v() + h * c.value_dim;
        const float beta = c.steps ? c.beta_scale * row[t * c.ld + c.beta() + h] : 1;
        for (int i = 0; i < c.value_dim; ++i) values.push_back(beta * v[i]);
      }
      RecurrenceArgs args;
      args.rule = c.rule;
      args.tokens = tokens[size_t(slot)];
      args.key_dim = c.key_dim;
      args.value_dim = c.value_dim;
      args.w_dim = c.w_dim;
      args.q = {row + key_head * c.key_dim, stride};
      args.k = {row + c.k() + key_head * c.key_dim, stride};
      args.v = {values.data(), size_t(c.value_dim)};
      if (c.w_dim > 0) args.w = {row + c.w() + h * c.w_dim, stride};
      std::vector<float> betas;
      for (int t = 0; t < kTokens; ++t) {
        betas.push_back(c.beta_scale * row[t * c.ld + c.beta() + h]);
      }
      if (c.rule == UpdateRule::kDelta) args.beta = {betas.data(), 1};
      if (c.rule == UpdateRule::kRankOne) {
        args.a = {row + c.a() + h * c.key_dim, stride};
        args.b = {row + c.a() + c.k() + h * c.key_dim, stride};
      }
      args.s = result.states.data() + size_t(slot) * c.floats_per_slot + kLayerFloats +
               h * c.key_dim * c.value_dim;
      args.y = result.y.data() + slot * kTokens * c.ld_y() + h * c.value_dim;
      args.y_stride = size_t(c.ld_y());
      RecurrenceRef(args);
      for (int t = 0; t < args.tokens; ++t) {
        for (int i = 0; i < c.value_dim; ++i) {
          float& y = args.y[size_t(t) * args.y_stride + size_t(i)];
          y *= c.q_scale;
          if (c.steps) y += c.skip[size_t(h)] * row[t * c.ld + c.v() + h * c.value_dim + i];
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
Result RunCuda(const CudaLaunch& launch, const Case& c,
               const std::vector<std::vector<CudaSegment>>& passes) {
  const DeviceArray<float> rows(c.rows), skip(c.skip), y(Untouched(c)), states(c.states);
  for (const std::vector<CudaSegment>& pass : passes) {
    const DeviceArray<CudaSegment> segments(pass);
    CudaRecurrenceArgs args = c.Args(rows.data(), skip.data());
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
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    for (const auto& [keys, values] :
         {std::array{1, 1}, {6, 5}, {16, 36}, {64, 64}, {65, 17}, {130, 12}, {300, 6}}) {
      for (const int w_dim : {0, 1, keys}) {
        // The larger shapes have the same code for every w, except for a single one of many keys.
        if (keys > 16 && w_dim != keys && !(keys == 64 && w_dim == 1)) continue;
        cases.emplace_back(rule, w_dim, keys, values);
      }
    }
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

std::string Name(const Case& c) {
  return "rule " + std::to_string(int(c.rule)) + " w_dim " + std::to_string(c.w_dim) + " of " +
         std::to_string(c.key_dim) + " x " + std::to_string(c.value_dim);
}

CudaSegment Tokens(int slot, int first, int count) {
  return {slot, slot * kTokens + first, count, 0};
}

TEST(CudaRecurrenceTest, EveryShapeMatchesTheReferenceAndLeavesOtherSlotsAndRowsAlone) {
  for (const Case& c : Cases()) {
    const Result expected = Expected(c, {3, 0, 5, 0});
    const auto check = [&](const CudaLaunch& launch) {
      const Result result =
          RunCuda(launch, c, {{Tokens(2, 0, 5), Tokens(1, 0, 0), Tokens(0, 0, 3)}});
      for (size_t i = 0; i < result.y.size(); ++i)
        ASSERT_NEAR(result.y[i], expected.y[i], 1e-5) << Name(c) << " y at " << i;
      for (size_t i = 0; i < result.states.size(); ++i)
        ASSERT_NEAR(result.states[i], expected.states[i], 1e-5) << Name(c) << " state at " << i;
      for (const size_t slot : {1, 3}) {
        for (size_t i = slot * c.floats_per_slot; i < (slot + 1) * c.floats_per_slot; ++i)
          ASSERT_EQ(result.states[i], c.states[i]) << Name(c) << " slot " << slot;
      }
    };
    ForEachOrder([&](const CudaLaunch& launch) { ForEachWidth(launch, check); });
  }
}

TEST(CudaRecurrenceTest, ARowHasTheSameBitsPrefilledOrSteppedInAnyCompany) {
  for (const Case& c : Cases()) {
    Result alone;
    const auto check_alone = [&](const CudaLaunch& launch) {
      const Result result = RunCuda(launch, c, {{Tokens(1, 0, 5)}});
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
      const Result stepped = RunCuda(launch, c, steps);
      ASSERT_TRUE(SameBits(part(stepped.y), part(alone.y))) << Name(c);
      ASSERT_TRUE(SameBits(part(stepped.states), part(alone.states))) << Name(c);
    });
  }
}

// The norm behind the last warp has the bits of the kernel that norms alone, and leaves its counts
// at zero, so that the next launch finds them so.
TEST(CudaRecurrenceTest, EveryShapeWithANormHasTheBitsOfTheNormAlone) {
  for (const auto& [keys, values, groups] :
       {std::array{12, 20, 1}, {12, 20, 2}, {70, 6, 1}, {130, 12, 2}, {300, 6, 4}, {16, 700, 1}}) {
    Case c(UpdateRule::kDecay, 1, keys, values);
    c.steps = c.shared_keys = true;
    const int columns = kHeads * values, ld_gate = columns + 5;
    const DeviceArray<float> gate(RandomFloats(size_t(kSlots * kTokens * ld_gate), 4, -3, 3)),
        weight(RandomFloats(size_t(columns), 5, 0.5f, 1.5f)), rows(c.rows), skip(c.skip);
    // Of tokens one by one, and of some at once.
    const std::vector<std::vector<CudaSegment>> passes = {
        {Tokens(2, 0, 1), Tokens(1, 0, 0), Tokens(0, 0, 1)}, {Tokens(0, 1, 2), Tokens(2, 1, 3)}};
    const auto run = [&](const CudaLaunch& launch, bool fused, bool to_half) {
      const DeviceArray<float> y(Untouched(c)), states(c.states);
      const DeviceArray<uint16_t> half(y.size());
      const DeviceArray<unsigned> done(std::vector<unsigned>(3, 0u));
      const CudaHalfRows halves = {to_half ? half.data() : nullptr, size_t(c.ld_y())};
      for (const std::vector<CudaSegment>& pass : passes) {
        const DeviceArray<CudaSegment> segments(pass);
        CudaRecurrenceArgs args = c.Args(rows.data(), skip.data());
        args.segments = segments.data();
        args.num_segments = int(pass.size());
        args.states = states.data();
        args.y = y.data();
        if (fused) {
          args.norm = {done.data(), {gate.data(), ld_gate, values}, weight.data(), groups, 1e-3f,
                       halves};
        }
        EXPECT_EQ(CheckRecurrenceCuda(args), nullptr);
        EXPECT_EQ(RecurrenceCuda(launch, args), cudaSuccess);
        RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
        EXPECT_EQ(done.Copy(), std::vector<unsigned>(3, 0u));
        for (const CudaSegment& segment : pass) {
          if (fused || segment.num_rows == 0) continue;
          RmsNormArgs norm;
          norm.x = norm.y = y.data() + segment.first_row * c.ld_y();
          norm.x_stride = norm.y_stride = size_t(c.ld_y());
          norm.weight = weight.data();
          norm.weight_stride = size_t(columns / groups);
          norm.rows = segment.num_rows;
          norm.groups = groups;
          norm.size = columns / groups;
          norm.eps = 1e-3f;
          const CudaGate how = {Activation::kSilu, gate.data() + segment.first_row * ld_gate,
                                size_t(ld_gate), true};
          EXPECT_EQ(RmsNormCuda(launch, norm, how), cudaSuccess);
        }
      }
      RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
      return std::tuple(y.Copy(), half.Copy(), states.Copy());
    };
    const auto [y, unused, states] = run({}, false, false);
    ForEachOrder([&](const CudaLaunch& launch) {
      const auto [fused, not_half, fused_states] = run(launch, true, false);
      ASSERT_TRUE(SameBits(fused, y)) << Name(c);
      ASSERT_TRUE(SameBits(fused_states, states)) << Name(c);
      const auto [between, half, half_states] = run(launch, true, true);
      for (size_t i = 0; i < y.size(); ++i) {
        const int row = int(i) / c.ld_y(), token = row % kTokens, slot = row / kTokens;
        const bool written =
            int(i) % c.ld_y() < columns && ((slot == 0 && token < 3) || (slot == 2 && token < 4));
        ASSERT_EQ(half[i], written ? F32ToF16(y[i]) : 0xFFFF) << i;
      }
    });
  }
}

TEST(CudaRecurrenceTest, RefusesWhatTheHeaderDoesNotAllow) {
  const Case c(UpdateRule::kRankOne, 8, 8, 20);
  float memory[16] = {};
  CudaSegment segment;
  const auto refused = [&](const auto& change) {
    CudaRecurrenceArgs args = c.Args(c.rows.data(), nullptr);
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
}  // namespace rivulet::kernels
