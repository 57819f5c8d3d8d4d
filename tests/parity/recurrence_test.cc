// SPDX-License-Identifier: Apache-2.0
#include "kernels/recurrence.h"

#include <algorithm>
#include <array>
#include <thread>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

// One head's inputs, side by side in rows of `ld`: [q | k | v | w | beta | a | b].
struct Case {
  Case(UpdateRule which, int decays, int keys, int values, int count)
      : rule(which), w_dim(decays), key_dim(keys), value_dim(values), tokens(count) {
    ld = 5 * keys + values + 2;
    rows = RandomFloats(size_t(count * ld), 7);
    start = RandomFloats(size_t(keys * values), 8);
    // |S| stays bounded: decays in [0.7, 1], vectors of length below 1.
    const float length = 1 / std::sqrt(float(keys));
    for (int t = 0; t < count; ++t) {
      float* row = rows.data() + t * ld;
      for (int i = 0; i < 2 * keys; ++i) row[i] *= length;
      for (int i = 0; i < keys; ++i) row[w() + i] = 0.85f + 0.15f * row[w() + i];
      row[beta()] = 0.5f + 0.5f * row[beta()];
      for (int i = 0; i < 2 * keys; ++i) row[a() + i] *= 0.7f * length;
    }
  }
  int k() const { return key_dim; }
  int v() const { return 2 * key_dim; }
  int w() const { return v() + value_dim; }
  int beta() const { return w() + key_dim; }
  int a() const { return beta() + 1; }
  int b() const { return a() + key_dim; }

  // Tokens first .. first + count - 1 into `y` (row `first`), advancing s.
  RecurrenceArgs Args(int first, int count, float* y, float* s) const {
    const size_t stride = size_t(ld);
    const float* row = rows.data() + first * ld;
    RecurrenceArgs args;
    args.rule = rule;
    args.tokens = count;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.w_dim = w_dim;
    args.q = {row, stride};
    args.k = {row + k(), stride};
    args.v = {row + v(), stride};
    if (w_dim > 0) args.w = {row + w(), stride};
    if (rule == UpdateRule::kDelta) args.beta = {row + beta(), stride};
    if (rule == UpdateRule::kRankOne) {
      args.a = {row + a(), stride};
      args.b = {row + b(), stride};
    }
    args.s = s;
    args.y = y + first * value_dim;
    args.y_stride = size_t(value_dim);
    return args;
  }

  UpdateRule rule;
  int w_dim, key_dim, value_dim, tokens, ld = 0;
  std::vector<float> rows, start;
};

struct Result {
  std::vector<float> y, s;
};

// The same without a running state: A_t = diag(w_t) + b_t a_t^T is the transition of token t, and
//   y_t = S_0^T p(t, 0) + sum_{i <= t} (p(t, i) . k_i) v_i     p(t, i) = A_{i+1}^T ... A_t^T q_t
// where the delta rule has a = w * k, b = -beta k, and beta k in place of k.
std::vector<double> Unrolled(const Case& c) {
  const auto at = [&](int t, int i) { return double{c.rows[size_t(t * c.ld + i)]}; };
  const bool delta = c.rule == UpdateRule::kDelta, rank_one = c.rule == UpdateRule::kRankOne;
  const int keys = c.key_dim, values = c.value_dim;
  std::vector<double> y(size_t(c.tokens * values)), p(static_cast<size_t>(keys));
  for (int t = 0; t < c.tokens; ++t) {
    for (int f = 0; f < keys; ++f) p[size_t(f)] = at(t, f);
    double* out = &y[size_t(t * values)];
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
      for (int e = 0; e < values; ++e) out[e] += p[size_t(f)] * c.start[size_t(f * values + e)];
    }
  }
  return y;
}

Result RunCpu(const Case& c, int chunk) {
  GuardedFloats y(size_t(c.tokens * c.value_dim)), s(c.start.size());
  std::copy(c.start.begin(), c.start.end(), s.data());
  for (int t = 0; t < c.tokens; t += chunk) {
    const RecurrenceArgs args = c.Args(t, std::min(chunk, c.tokens - t), y.data(), s.data());
    EXPECT_EQ(CheckRecurrence(args), nullptr);
    RecurrenceCpu(args);
  }
  EXPECT_TRUE(y.Intact() && s.Intact());
  return {y.Copy(), s.Copy()};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    for (const auto& [keys, values, tokens] :
         {std::array{1, 1, 9}, {7, 5, 23}, {16, 64, 40}, {33, 100, 17}, {64, 32, 12}}) {
      for (const int w_dim : {0, 1, keys}) cases.emplace_back(rule, w_dim, keys, values, tokens);
    }
  }
  return cases;
}

std::string Name(const Case& c) {
  return "rule " + std::to_string(int(c.rule)) + " w_dim " + std::to_string(c.w_dim) + " of " +
         std::to_string(c.key_dim) + " x " + std::to_string(c.value_dim);
}

TEST(RecurrenceTest, EqualsTheProductOfTransitionsAndTheReference) {
  for (const Case& c : Cases()) {
    const std::vector<double> expected = Unrolled(c);
    std::vector<float> y(expected.size()), s = c.start;
    RecurrenceRef(c.Args(0, c.tokens, y.data(), s.data()));
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 2e-6) << Name(c);
    ForEachCpuTarget([&](const std::string& target) {
      const Result result = RunCpu(c, 1);
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(result.y[i], expected[i], 1e-5) << target << " " << Name(c) << " at " << i;
      for (size_t i = 0; i < s.size(); ++i)
        ASSERT_NEAR(result.s[i], s[i], 1e-5) << target << " " << Name(c) << " at " << i;
    });
  }
}

TEST(RecurrenceTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : Cases()) {
    const Result reference = RunCpu(c, 1);
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;
      for (const int chunk : {1, 2, 3, 16, 1000}) {
        const Result result = RunCpu(c, chunk);
        ASSERT_TRUE(SameBits(result.y, reference.y)) << target << " chunk " << chunk << Name(c);
        ASSERT_TRUE(SameBits(result.s, reference.s)) << target << " chunk " << chunk << Name(c);
      }
    });
  }
}

// A column's bits do not depend on which columns stand beside it, nor on where it lies in a vector.
TEST(RecurrenceTest, AColumnAloneHasTheBitsItHasBesideOthers) {
  for (const Case& c : Cases()) {
    const Result whole = RunCpu(c, c.tokens);
    for (int column = 0; column < c.value_dim; column += 3) {
      std::vector<float> s, y(size_t(c.tokens)), expected_s, expected_y;
      for (int f = 0; f < c.key_dim; ++f) {
        s.push_back(c.start[size_t(f * c.value_dim + column)]);
        expected_s.push_back(whole.s[size_t(f * c.value_dim + column)]);
      }
      for (int t = 0; t < c.tokens; ++t)
        expected_y.push_back(whole.y[size_t(t * c.value_dim + column)]);
      RecurrenceArgs args = c.Args(0, c.tokens, y.data(), s.data());
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
  const std::vector<Case> cases = Cases();
  std::vector<Result> alone, together(cases.size());
  for (const Case& c : cases) alone.push_back(RunCpu(c, 4));
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < cases.size(); i += 4) together[i] = RunCpu(cases[i], 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(SameBits(together[i].y, alone[i].y));
    EXPECT_TRUE(SameBits(together[i].s, alone[i].s));
  }
}

TEST(RecurrenceTest, NoDecayIsADecayOfOneAndStrideZeroRepeatsAVector) {
  const float one = 1, half = 0.5f;
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    const Case none(rule, 0, 8, 20, 6);
    const Result expected = RunCpu(none, 6);
    Case scalar = none;
    scalar.w_dim = 1;
    for (int t = 0; t < scalar.tokens; ++t) scalar.rows[size_t(t * scalar.ld + scalar.w())] = half;
    for (const float* w : {&one, &half}) {
      std::vector<float> y(expected.y.size()), s = none.start;
      RecurrenceArgs args = scalar.Args(0, 6, y.data(), s.data());
      args.w = {w, 0};
      RecurrenceCpu(args);
      const Result wanted = w == &one ? expected : RunCpu(scalar, 6);
      EXPECT_TRUE(SameBits(y, wanted.y));
      EXPECT_TRUE(SameBits(s, wanted.s));
    }
  }
}

TEST(RecurrenceTest, TheOutputMayReplaceTheValues) {
  for (const Case& c : Cases()) {
    const Result expected = RunCpu(c, c.tokens);
    std::vector<float> s = c.start, values;
    for (int t = 0; t < c.tokens; ++t) {
      const float* v = c.rows.data() + t * c.ld + c.v();
      values.insert(values.end(), v, v + c.value_dim);
    }
    RecurrenceArgs args = c.Args(0, c.tokens, values.data(), s.data());
    args.v = {values.data(), size_t(c.value_dim)};
    RecurrenceCpu(args);
    EXPECT_TRUE(SameBits(values, expected.y)) << Name(c);
    EXPECT_TRUE(SameBits(s, expected.s)) << Name(c);
  }
}

TEST(RecurrenceTest, EdgesOfTheEquations) {
  Case c(UpdateRule::kDelta, 1, 8, 20, 1);
  std::vector<float> y(20), s = c.start;
  RecurrenceCpu(c.Args(0, 0, y.data(), s.data()));
  EXPECT_TRUE(SameBits(s, c.start)) << "no token leaves the state alone";
  c.rows[size_t(c.beta())] = 0;
  c.rows[size_t(c.w())] = 0.25f;
  RecurrenceCpu(c.Args(0, 1, y.data(), s.data()));
  for (size_t i = 0; i < s.size(); ++i) EXPECT_EQ(s[i], 0.25f * c.start[i]) << "beta = 0 decays";
  c.rule = UpdateRule::kDecay;
  c.rows[size_t(c.w())] = 0;
  RecurrenceCpu(c.Args(0, 1, y.data(), s.data()));
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
  const Result result = RunCpu(exact, 1);
  for (int v = 0; v < 20; ++v)
    EXPECT_NEAR(result.y[size_t(v)], exact.rows[size_t(exact.v() + v)], 1e-6);
}

TEST(RecurrenceTest, TenThousandTokensStayNearTheReference) {
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    const Case c(rule, 16, 16, 16, 10000);
    const Result result = RunCpu(c, 100);
    std::vector<float> y(result.y.size()), s = c.start;
    RecurrenceRef(c.Args(0, c.tokens, y.data(), s.data()));
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(result.y[i], y[i], 2e-5) << Name(c);
  }
}

TEST(RecurrenceTest, RefusesWhatTheHeaderDoesNotAllow) {
  const Case c(UpdateRule::kRankOne, 8, 8, 20, 2);
  std::vector<float> y(40), s = c.start;
  const auto refused = [&](const auto& change) {
    RecurrenceArgs args = c.Args(0, 2, y.data(), s.data());
    change(args);
    return CheckRecurrence(args) != nullptr;
  };
  EXPECT_FALSE(refused([](RecurrenceArgs&) {}));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.key_dim = 0; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.w_dim = 7; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.w_dim = 0; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.s = nullptr; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.q = {}; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.b = {}; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.beta = a.q; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.rule = UpdateRule::kDecay; }));
  EXPECT_TRUE(refused([](RecurrenceArgs& a) { a.y_stride = 19; }));
}

}  // namespace
}  // namespace rivulet::kernels
