// SPDX-License-Identifier: Apache-2.0
#include "kernels/recurrence.h"

#include <algorithm>
#include <thread>

#include "tests/support/cuts.h"
#include "tests/support/recurrence_case.h"

namespace rivulet::kernels::recurrence_test {
namespace {

using Case = RecurrenceCase;

// The same without a running state: A_t = diag(w_t) + b_t a_t^T is the transition of token t, and
//   y_t = S_0^T p(t, 0) + sum_{i <= t} (p(t, i) . k_i) v_i     p(t, i) = A_{i+1}^T ... A_t^T q_t
// where the delta rule has a = w * k, b = -beta k, and beta k in place of k.
std::vector<double> Unrolled(const Case& c) {
  const auto at = [&](int t, int i) { return double{c.rows[size_t(t * c.ld() + i)]}; };
  const bool delta = c.rule == UpdateRule::kDelta, rank_one = c.rule == UpdateRule::kRankOne;
  const int keys = c.key_dim, values = c.value_dim;
  std::vector<double> y(c.y_size(), 7.0), p(static_cast<size_t>(keys));  // 7: between the rows
  for (int t = 0; t < c.tokens; ++t) {
    for (int f = 0; f < keys; ++f) p[size_t(f)] = at(t, f);
    double* out = &y[size_t(t * c.ld_y())];
    std::fill_n(out, values, 0.0);
    for (int i = t; i >= 0; --i) {
      const double beta = delta ? at(i, c.beta()) : 1;
      const auto w = [&](int f) { return c.w_dim == 0 ? 1 : at(i, c.w() + (c.w_dim > 1 ? f : 0)); };
      double key = 0, b = 0;
      for (int f = 0; f < keys; ++f) {
        key += p[size_t(f)] * beta * at(i, c.k() + f);
        if (rank_one) b += p[size_t(f)] * at(i, c.b() + f);
      }
      for (int e = 0; e < values; ++e) out[e] += key * at(i, c.v() + e);
      for (int f = 0; f < keys; ++f) {
        p[size_t(f)] *= w(f);
        if (delta) p[size_t(f)] -= key * w(f) * at(i, c.k() + f);
        if (rank_one) p[size_t(f)] += b * at(i, c.a() + f);
      }
    }
    for (int f = 0; f < keys; ++f) {
      for (int e = 0; e < values; ++e) out[e] += p[size_t(f)] * c.states[size_t(f * values + e)];
    }
  }
  return y;
}

TEST(RecurrenceTest, EqualsTheProductOfTransitionsAndTheReference) {
  for (const Case& c : RecurrenceCases()) {
    const std::vector<double> expected = Unrolled(c);
    const RowsAndStates reference = Expected(c, RecurrenceRef);
    ASSERT_TRUE(Near(reference.y, expected, 2e-6)) << Name(c);
    ForEachCpuTarget([&](const std::string& target) {
      const RowsAndStates result = RunCpu(c, 1, RecurrenceCpu);
      ASSERT_TRUE(Near(result.y, expected, 1e-5)) << target << " " << Name(c);
      ASSERT_TRUE(Near(result.states, reference.states, 1e-5)) << target << " " << Name(c);
    });
  }
}

TEST(RecurrenceTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : RecurrenceCases()) {
    SCOPED_TRACE(Name(c));
    ExpectTheSameInEveryChunk(c, RecurrenceCpu);
  }
}

// A column's bits do not depend on which columns stand beside it, nor on where it lies in a vector.
TEST(RecurrenceTest, AColumnAloneHasTheBitsItHasBesideOthers) {
  for (const Case& c : RecurrenceCases()) {
    const RowsAndStates whole = RunCpu(c, c.tokens, RecurrenceCpu);
    for (int column = 0; column < c.value_dim; column += 3) {
      std::vector<float> s, y(size_t(c.tokens)), expected_s, expected_y;
      for (int f = 0; f < c.key_dim; ++f) {
        s.push_back(c.states[size_t(f * c.value_dim + column)]);
        expected_s.push_back(whole.states[size_t(f * c.value_dim + column)]);
      }
      for (int t = 0; t < c.tokens; ++t)
        expected_y.push_back(whole.y[size_t(t * c.ld_y() + column)]);
      RecurrenceArgs args = c.Args(0, 0, c.tokens, y.data(), s.data());
      args.value_dim = 1;
      args.y_stride = 1;
      args.v.data += column;
      RecurrenceCpu(args);
      ASSERT_TRUE(SameBits(y, expected_y)) << Name(c);
      ASSERT_TRUE(SameBits(s, expected_s)) << Name(c);
    }
  }
}

TEST(RecurrenceTest, SequencesOnManyThreadsHaveTheBitsTheyHaveAlone) {
  const std::vector<Case> cases = RecurrenceCases();
  std::vector<RowsAndStates> alone, together(cases.size());
  for (const Case& c : cases) alone.push_back(RunCpu(c, 4, RecurrenceCpu));
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < cases.size(); i += 4)
        together[i] = RunCpu(cases[i], 4, RecurrenceCpu);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(SameBits(together[i].y, alone[i].y));
    EXPECT_TRUE(SameBits(together[i].states, alone[i].states));
  }
}

TEST(RecurrenceTest, NoDecayIsADecayOfOneAndStrideZeroRepeatsAVector) {
  const float one = 1, half = 0.5f;
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    const Case none(rule, 0, 8, 20, 6);
    const RowsAndStates expected = RunCpu(none, 6, RecurrenceCpu);
    Case scalar = none;
    scalar.w_dim = 1;
    for (int t = 0; t < scalar.tokens; ++t)
      scalar.rows[size_t(t * scalar.ld() + scalar.w())] = half;
    for (const float* w : {&one, &half}) {
      RowsAndStates got = Start(none);
      RecurrenceArgs args = scalar.Args(0, 0, 6, got.y.data(), got.states.data());
      args.w = {w, 0};
      RecurrenceCpu(args);
      const RowsAndStates wanted = w == &one ? expected : RunCpu(scalar, 6, RecurrenceCpu);
      EXPECT_TRUE(SameBits(got.y, wanted.y) && SameBits(got.states, wanted.states));
    }
  }
}

TEST(RecurrenceTest, TheOutputMayReplaceTheValues) {
  for (const Case& c : RecurrenceCases()) {
    const RowsAndStates expected = RunCpu(c, c.tokens, RecurrenceCpu);
    RowsAndStates got = Start(c);
    for (int t = 0; t < c.tokens; ++t) {
      std::copy_n(c.rows.begin() + t * c.ld() + c.v(), c.value_dim, got.y.begin() + t * c.ld_y());
    }
    RecurrenceArgs args = c.Args(0, 0, c.tokens, got.y.data(), got.states.data());
    args.v = {got.y.data(), args.y_stride};
    RecurrenceCpu(args);
    EXPECT_TRUE(SameBits(got.y, expected.y)) << Name(c);
    EXPECT_TRUE(SameBits(got.states, expected.states)) << Name(c);
  }
}

TEST(RecurrenceTest, EdgesOfTheEquations) {
  Case c(UpdateRule::kDelta, 1, 8, 20, 1);
  std::vector<float> y(20), s = c.states;
  RecurrenceCpu(c.Args(0, 0, 0, y.data(), s.data()));
  EXPECT_TRUE(SameBits(s, c.states)) << "no token leaves the state alone";
  c.rows[size_t(c.beta())] = 0;
  c.rows[size_t(c.w())] = 0.25f;
  RecurrenceCpu(c.Args(0, 0, 1, y.data(), s.data()));
  for (size_t i = 0; i < 160; ++i) EXPECT_EQ(s[i], 0.25f * c.states[i]) << "beta = 0 decays";
  c.rule = UpdateRule::kDecay;
  c.rows[size_t(c.w())] = 0;
  RecurrenceCpu(c.Args(0, 0, 1, y.data(), s.data()));
  for (int f = 0; f < 8; ++f) {
    for (int v = 0; v < 20; ++v)
      EXPECT_EQ(s[size_t(f * 20 + v)], c.rows[size_t(c.k() + f)] * c.rows[size_t(c.v() + v)])
          << "w = 0 forgets all but this token";
  }
  // Of the delta rule with beta = 1, w = 1 and a key of length 1: the state answers v to k.
  Case exact(UpdateRule::kDelta, 0, 8, 20, 1);
  for (int f = 0; f < 8; ++f) {
    exact.rows[size_t(f)] = exact.rows[size_t(exact.k() + f)] = f == 3 ? 1.0f : 0.0f;
  }
  exact.rows[size_t(exact.beta())] = 1;
  const RowsAndStates result = RunCpu(exact, 1, RecurrenceCpu);
  for (int v = 0; v < 20; ++v)
    EXPECT_NEAR(result.y[size_t(v)], exact.rows[size_t(exact.v() + v)], 1e-6);
}

TEST(RecurrenceTest, TenThousandTokensStayNearTheReference) {
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    const Case c(rule, 16, 16, 16, 10000);
    const RowsAndStates result = RunCpu(c, 100, RecurrenceCpu);
    ASSERT_TRUE(Near(result.y, Expected(c, RecurrenceRef).y, 2e-5)) << Name(c);
  }
}

}  // namespace
}  // namespace rivulet::kernels::recurrence_test
