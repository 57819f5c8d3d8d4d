// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax_attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/cuts.h"
#include "tests/support/softmax_attention_case.h"

namespace rivulet::kernels::softmax_attention_test {
namespace {

using Case = SoftmaxAttentionCase;

constexpr int kTokens = 200;

std::vector<Case> Cases() {
  std::vector<Case> cases;
  // The sanitizers need a window within a block and one over its end.
  const std::vector<int> windows =
      RIVULET_SANITIZED ? std::vector{0, 4, 65} : std::vector{0, 1, 2, 4, 63, 64, 65, 66, 100};
  for (const Case& c : SoftmaxAttentionCases(windows, kTokens)) {
    // The larger shapes cost much, and their windows are as others.
    if (c.key_dim + c.value_dim < 200 || c.window % 66 == 0) cases.push_back(c);
  }
  for (const CacheType type : {CacheType::kF16, CacheType::kBf16}) {
    for (const int window : {0, 65}) {
      for (const auto& [keys, values, queries] : {std::array{5, 7, 3}, {64, 64, 4}, {16, 72, 8}}) {
        cases.emplace_back(keys, values, queries, window, kTokens).RoundTo(type);
      }
    }
  }
  return cases;
}

// `attend` with its scratch.
template <class F>
auto Scratched(const F& attend) {
  return [=](SoftmaxAttentionArgs args) {
    GuardedFloats scratch(
        SoftmaxAttentionScratch(args.queries, args.key_dim, args.value_dim, args.type));
    args.scratch = scratch.data();
    attend(args);
    EXPECT_TRUE(scratch.Intact());
  };
}
const auto Cpu = Scratched(SoftmaxAttentionCpu), Ref = Scratched(SoftmaxAttentionRef);

// Of one query, straight from the rows.
std::vector<double> Naive(const Case& c, int t, int head) {
  const auto at = [&](int token, int i) { return double{c.rows[size_t(token * c.ld() + i)]}; };
  const int first = c.window == 0 ? 0 : std::max(0, t - int(c.window) + 1);
  std::vector<double> y(size_t(c.value_dim));
  double sum = 0;
  for (int i = first; i <= t; ++i) {
    double score = 0;
    for (int f = 0; f < c.key_dim; ++f) score += at(t, head * c.key_dim + f) * at(i, c.k() + f);
    const double weight = std::exp(double{0.7f} * score);
    sum += weight;
    for (int e = 0; e < c.value_dim; ++e) y[size_t(e)] += weight * at(i, c.v() + e);
  }
  for (double& value : y) value /= sum;
  return y;
}

TEST(SoftmaxAttentionTest, EqualsTheSumsOverAllPositionsThatATokenSees) {
  for (const Case& c : Cases()) {
    const RowsAndStates reference = RunCpu(c, 1, Ref);
    ForEachCpuTarget([&](const std::string& target) {
      const RowsAndStates result = RunCpu(c, 200, Cpu);
      ASSERT_TRUE(SameBits(result.states, reference.states)) << target << " " << Name(c);
      for (const int t : {0, 1, 3, 62, 63, 64, 65, 127, 128, 199}) {
        for (int h = 0; h < c.queries; ++h) {
          const std::vector<double> expected = Naive(c, t, h);
          for (int e = 0; e < c.value_dim; ++e) {
            const size_t at = size_t(t * c.ld_y() + h * c.value_dim + e);
            ASSERT_NEAR(reference.y[at], expected[size_t(e)], 1e-6) << Name(c) << " at " << t;
            ASSERT_NEAR(result.y[at], expected[size_t(e)], 2e-5)
                << target << " " << Name(c) << " at " << t << " head " << h;
          }
        }
      }
    });
  }
}

TEST(SoftmaxAttentionTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    ExpectTheSameInEveryChunk(c, Cpu, {1, 3, 64, 70, kTokens});
  }
}

// One head of queries has the bits that it has beside others.
TEST(SoftmaxAttentionTest, AQueryAloneHasTheBitsItHasBesideOthers) {
  for (const Case& c : Cases()) {
    const RowsAndStates whole = RunCpu(c, c.tokens, Cpu);
    for (int h = 0; h < c.queries; ++h) {
      const RowsAndStates alone = RunCpu(c, c.tokens, [&](SoftmaxAttentionArgs args) {
        args.queries = 1;
        args.q.data += h * c.key_dim;
        args.y += h * c.value_dim;
        Cpu(args);
      });
      for (int t = 0; t < c.tokens; ++t) {
        for (int e = 0; e < c.value_dim; ++e) {
          const size_t at = size_t(t * c.ld_y() + h * c.value_dim + e);
          ASSERT_EQ(alone.y[at], whole.y[at]) << Name(c) << " at " << t << " head " << h;
        }
      }
    }
  }
}

// Threads that share the blocks of a head: parts in any order, joined a few at a time.
TEST(SoftmaxAttentionTest, PartsJoinToTheBitsOfTheWhole) {
  for (const Case& c : Cases()) {
    if (c.window != 0) continue;
    const RowsAndStates whole = RunCpu(c, c.tokens, Cpu);
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;
      const RowsAndStates shared =
          RunCpu(c, 1, Scratched([](const SoftmaxAttentionArgs& args) {
                   const size_t floats = SoftmaxPartFloats(args.queries, args.value_dim);
                   const int64_t blocks = CacheBlocks(args.position + 1);
                   GuardedFloats parts(size_t(blocks) * floats), so_far(2 * size_t(args.queries));
                   SoftmaxKeepCpu(args);
                   for (int64_t b = blocks - 1; b >= 0; --b) {
                     SoftmaxPartCpu(args, b, parts.data() + size_t(b) * floats, b - 1);
                   }
                   for (int64_t b = 0; b < blocks; b += 2) {
                     for (int query = 0; query < args.queries; ++query) {
                       SoftmaxJoinCpu(args, query, b, std::min(b + 2, blocks),
                                      parts.data() + size_t(b) * floats, so_far.data() + 2 * query);
                     }
                   }
                   EXPECT_TRUE(parts.Intact() && so_far.Intact());
                 }));
      ASSERT_TRUE(SameBits(shared.y, whole.y)) << target << " " << Name(c);
      ASSERT_TRUE(SameBits(shared.states, whole.states)) << target << " " << Name(c);
    });
  }
}

TEST(SoftmaxAttentionTest, KeysAndValuesAreRoundedToNearestEvenWhenTheyAreKept) {
  for (const CacheType type : {CacheType::kF16, CacheType::kBf16}) {
    Case c(8, 8, 2, 0, 130);
    Case rounded = c;
    rounded.RoundTo(type);
    for (int t = 0; t < c.tokens; ++t) {  // queries are not rounded
      std::copy_n(c.rows.begin() + t * c.ld(), c.k(), rounded.rows.begin() + t * c.ld());
    }
    rounded.KeepAs(CacheType::kF32);
    c.KeepAs(type);
    ForEachCpuTarget([&](const std::string& target) {
      const RowsAndStates result = RunCpu(c, 130, Cpu);
      EXPECT_TRUE(SameBits(result.y, RunCpu(rounded, 130, Cpu).y)) << target;
    });
  }
}

// Scores of hundreds neither overflow nor lose what the smaller ones hold.
TEST(SoftmaxAttentionTest, LargeScoresAndWhatIsNotFinite) {
  ForEachCpuTarget([&](const std::string& target) {
    Case c(4, 4, 1, 0, 130);
    for (int t = 0; t < c.tokens; ++t) {
      for (int f = 0; f < 8; ++f) c.rows[size_t(t * c.ld() + f)] *= 12;
    }
    const RowsAndStates result = RunCpu(c, 130, Cpu);
    const RowsAndStates reference = RunCpu(c, 1, Ref);
    ASSERT_TRUE(Near(result.y, reference.y, 2e-3)) << target;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Case broken = c;
      broken.rows[size_t(3 * c.ld())] = bad;  // a query of token 3: of no other
      const RowsAndStates some = RunCpu(broken, 130, Cpu);
      for (int t = 0; t < c.tokens; ++t) {
        EXPECT_EQ(std::isfinite(some.y[size_t(t * c.ld_y())]), t != 3) << target << " token " << t;
      }
    }
    Case broken = c;
    broken.rows[size_t(3 * c.ld() + c.k())] = std::numeric_limits<float>::quiet_NaN();  // a key
    const RowsAndStates all = RunCpu(broken, 130, Cpu);
    for (int t = 0; t < c.tokens; ++t) {
      EXPECT_EQ(std::isfinite(all.y[size_t(t * c.ld_y())]), t < 3) << target << " token " << t;
    }
  });
}

// A value that is not finite reaches the tokens that see it, no earlier token of the same call, and
// none past the window.
TEST(SoftmaxAttentionTest, ValuesThatATokenDoesNotSeeChangeNothing) {
  constexpr int kBad = 70;
  for (const int window : {0, 4, 65, 100}) {
    for (const CacheType type : {CacheType::kF32, CacheType::kF16}) {
      Case clean(16, 24, 3, window, 300);
      clean.RoundTo(type);
      const RowsAndStates expected = RunCpu(clean, clean.tokens, Cpu);
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Case broken = clean;
        broken.rows[size_t(kBad * clean.ld() + clean.v() + 5)] = bad;
        ForEachCpuTarget([&](const std::string& target) {
          if (!CpuTargetFuses()) return;
          for (const int chunk : {1, 3, 64, 300}) {
            const RowsAndStates result = RunCpu(broken, chunk, Cpu);
            for (size_t i = 0; i < result.y.size(); ++i) {
              const int t = int(i) / clean.ld_y(), column = int(i) % clean.ld_y();
              if (t >= kBad && (window == 0 || t < kBad + window) && column < clean.width() &&
                  column % clean.value_dim == 5) {
                ASSERT_FALSE(std::isfinite(result.y[i])) << target << " token " << t;
              } else {
                ASSERT_EQ(result.y[i], expected.y[i])
                    << target << " " << Name(clean) << " chunk " << chunk << " token " << t;
              }
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace rivulet::kernels::softmax_attention_test
