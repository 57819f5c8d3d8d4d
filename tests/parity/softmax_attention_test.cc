// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax_attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

// A whole sequence of one head, [q | k | v] side by side in a row of each token.
struct Case {
  Case(int keys, int values, int heads, int64_t seen, int count)
      : key_dim(keys), value_dim(values), queries(heads), window(seen), tokens(count) {
    ld = (queries + 1) * key_dim + value_dim + 3;
    rows = RandomFloats(size_t(tokens * ld), 5, -2, 2);
    ring = window == 0 ? 0 : RingBlocks(window);
    blocks = window == 0 ? CacheBlocks(tokens) : ring;
  }
  // Keys and values that the type holds exactly, so that only what is kept rounds.
  void RoundTo(CacheType kept) {
    type = kept;
    for (float& x : rows) {
      x = type == CacheType::kF16 ? F16ToF32(F32ToF16(x)) : Bf16ToF32(F32ToBf16(x));
    }
  }
  int k() const { return queries * key_dim; }
  int v() const { return k() + key_dim; }
  // Another head lies before each block's part.
  size_t stride() const { return CacheFloats(key_dim, value_dim, type) + 24; }
  size_t cache_floats() const { return size_t(blocks) * stride(); }

  SoftmaxAttentionArgs Args(int first, int count, float* cache, float* y, float* scratch) const {
    const float* const row = rows.data() + first * ld;
    SoftmaxAttentionArgs args;
    args.tokens = count;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.queries = queries;
    args.position = first;
    args.window = window;
    args.scale = 0.7f;
    args.q = {row, size_t(ld)};
    args.k = {row + k(), size_t(ld)};
    args.v = {row + v(), size_t(ld)};
    args.cache = cache;
    args.type = type;
    args.block_stride = stride();
    args.ring = ring;
    args.y_stride = size_t(queries * value_dim + 1);
    args.y = y + size_t(first) * args.y_stride;
    args.scratch = scratch;
    return args;
  }

  int key_dim, value_dim, queries;
  int64_t window;
  int tokens, ld = 0;
  CacheType type = CacheType::kF32;
  int64_t ring = 0, blocks = 0;
  std::vector<float> rows;
};

std::string Name(const Case& c) {
  return std::to_string(c.key_dim) + " keys, " + std::to_string(c.value_dim) + " values, " +
         std::to_string(c.queries) + " queries, window " + std::to_string(c.window);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [keys, values, queries] :
       {std::array{8, 8, 1}, {5, 7, 3}, {64, 64, 4}, {33, 100, 2}, {16, 24, 6}}) {
    for (const int window : {0, 1, 2, 4, 63, 64, 65, 66, 100}) {
      cases.emplace_back(keys, values, queries, window, 200);
    }
  }
  for (const CacheType type : {CacheType::kF16, CacheType::kBf16}) {
    for (const int window : {0, 65}) {
      for (const auto& [keys, values, queries] : {std::array{5, 7, 3}, {64, 64, 4}}) {
        cases.emplace_back(keys, values, queries, window, 200).RoundTo(type);
      }
    }
  }
  return cases;
}

struct Result {
  std::vector<float> y, cache;
};

template <class Function>
Result RunCase(const Case& c, int chunk, const Function& attend) {
  GuardedFloats cache(c.cache_floats()), y(size_t(c.tokens * (c.queries * c.value_dim + 1))),
      scratch(SoftmaxAttentionScratch(c.queries, c.key_dim, c.value_dim, c.type));
  std::fill_n(cache.data(), c.cache_floats(), 0.0f);
  std::fill_n(y.data(), y.Copy().size(), 0.0f);
  for (int t = 0; t < c.tokens; t += chunk) {
    const SoftmaxAttentionArgs args =
        c.Args(t, std::min(chunk, c.tokens - t), cache.data(), y.data(), scratch.data());
    EXPECT_EQ(CheckSoftmaxAttention(args), nullptr);
    attend(args);
  }
  EXPECT_TRUE(cache.Intact() && y.Intact() && scratch.Intact());
  return {y.Copy(), cache.Copy()};
}

// Of one query, straight from the rows.
std::vector<double> Naive(const Case& c, int t, int head) {
  const auto at = [&](int token, int i) { return double{c.rows[size_t(token * c.ld + i)]}; };
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
    const Result reference = RunCase(c, 1, SoftmaxAttentionRef);
    ForEachCpuTarget([&](const std::string& target) {
      const Result result = RunCase(c, 200, SoftmaxAttentionCpu);
      ASSERT_TRUE(SameBits(result.cache, reference.cache)) << target << " " << Name(c);
      for (const int t : {0, 1, 3, 62, 63, 64, 65, 127, 128, 199}) {
        for (int h = 0; h < c.queries; ++h) {
          const std::vector<double> expected = Naive(c, t, h);
          for (int e = 0; e < c.value_dim; ++e) {
            const size_t at = size_t(t * (c.queries * c.value_dim + 1) + h * c.value_dim + e);
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
    const Result reference = RunCase(c, 1, SoftmaxAttentionCpu);
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;
      for (const int chunk : {1, 3, 64, 70, 200}) {
        const Result result = RunCase(c, chunk, SoftmaxAttentionCpu);
        ASSERT_TRUE(SameBits(result.y, reference.y)) << target << " chunk " << chunk << Name(c);
        ASSERT_TRUE(SameBits(result.cache, reference.cache)) << target << " chunk " << chunk;
      }
    });
  }
}

// One head of queries has the bits that it has beside others.
TEST(SoftmaxAttentionTest, AQueryAloneHasTheBitsItHasBesideOthers) {
  for (const Case& c : Cases()) {
    const Result whole = RunCase(c, c.tokens, SoftmaxAttentionCpu);
    for (int h = 0; h < c.queries; ++h) {
      const Result alone = RunCase(c, c.tokens, [&](SoftmaxAttentionArgs args) {
        args.queries = 1;
        args.q.data += h * c.key_dim;
        args.y += h * c.value_dim;
        SoftmaxAttentionCpu(args);
      });
      for (int t = 0; t < c.tokens; ++t) {
        for (int e = 0; e < c.value_dim; ++e) {
          const size_t at = size_t(t * (c.queries * c.value_dim + 1) + h * c.value_dim + e);
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
    const Result whole = RunCase(c, c.tokens, SoftmaxAttentionCpu);
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;
      const Result shared = RunCase(c, 1, [&](const SoftmaxAttentionArgs& args) {
        const size_t floats = SoftmaxPartFloats(args.queries, args.value_dim);
        const int64_t blocks = CacheBlocks(args.position + 1);
        GuardedFloats parts(size_t(blocks) * floats), so_far(2 * size_t(args.queries));
        SoftmaxKeepCpu(args);
        for (int64_t b = blocks - 1; b >= 0; --b) {
          SoftmaxPartCpu(args, b, parts.data() + size_t(b) * floats);
        }
        for (int64_t b = 0; b < blocks; b += 2) {
          for (int query = 0; query < args.queries; ++query) {
            SoftmaxJoinCpu(args, query, b, std::min(b + 2, blocks),
                           parts.data() + size_t(b) * floats, so_far.data() + 2 * query);
          }
        }
        EXPECT_TRUE(parts.Intact() && so_far.Intact());
      });
      ASSERT_TRUE(SameBits(shared.y, whole.y)) << target << " " << Name(c);
      ASSERT_TRUE(SameBits(shared.cache, whole.cache)) << target << " " << Name(c);
    });
  }
}

TEST(SoftmaxAttentionTest, KeysAndValuesAreRoundedToNearestEvenWhenTheyAreKept) {
  for (const CacheType type : {CacheType::kF16, CacheType::kBf16}) {
    Case c(8, 8, 2, 0, 130);
    Case rounded = c;
    rounded.RoundTo(type);
    for (int t = 0; t < c.tokens; ++t) {  // queries are not rounded
      std::copy_n(c.rows.begin() + t * c.ld, c.k(), rounded.rows.begin() + t * c.ld);
    }
    rounded.type = CacheType::kF32;
    c.type = type;
    ForEachCpuTarget([&](const std::string& target) {
      const Result result = RunCase(c, 130, SoftmaxAttentionCpu);
      EXPECT_TRUE(SameBits(result.y, RunCase(rounded, 130, SoftmaxAttentionCpu).y)) << target;
    });
  }
}

// Scores of hundreds neither overflow nor lose what the smaller ones hold.
TEST(SoftmaxAttentionTest, LargeScoresAndWhatIsNotFinite) {
  ForEachCpuTarget([&](const std::string& target) {
    Case c(4, 4, 1, 0, 130);
    for (int t = 0; t < c.tokens; ++t) {
      for (int f = 0; f < 8; ++f) c.rows[size_t(t * c.ld + f)] *= 12;
    }
    const Result result = RunCase(c, 130, SoftmaxAttentionCpu);
    const Result reference = RunCase(c, 1, SoftmaxAttentionRef);
    for (size_t i = 0; i < result.y.size(); ++i) {
      ASSERT_NEAR(result.y[i], reference.y[i], 2e-3) << target << " at " << i;
    }
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Case broken = c;
      broken.rows[size_t(3 * c.ld)] = bad;  // a query of token 3: of no other
      const Result some = RunCase(broken, 130, SoftmaxAttentionCpu);
      for (int t = 0; t < c.tokens; ++t) {
        EXPECT_EQ(std::isfinite(some.y[size_t(t * 5)]), t != 3) << target << " token " << t;
      }
    }
    Case broken = c;
    broken.rows[size_t(3 * c.ld + c.k())] = std::numeric_limits<float>::quiet_NaN();  // a key
    const Result all = RunCase(broken, 130, SoftmaxAttentionCpu);
    for (int t = 0; t < c.tokens; ++t) {
      EXPECT_EQ(std::isfinite(all.y[size_t(t * 5)]), t < 3) << target << " token " << t;
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
      const Result expected = RunCase(clean, clean.tokens, SoftmaxAttentionCpu);
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Case broken = clean;
        broken.rows[size_t(kBad * clean.ld + clean.v() + 5)] = bad;
        ForEachCpuTarget([&](const std::string& target) {
          if (!CpuTargetFuses()) return;
          for (const int chunk : {1, 3, 64, 300}) {
            const Result result = RunCase(broken, chunk, SoftmaxAttentionCpu);
            const size_t stride = size_t(clean.queries * clean.value_dim + 1);
            for (size_t i = 0; i < result.y.size(); ++i) {
              const int t = int(i / stride);
              const bool sees = t >= kBad && (window == 0 || t < kBad + window) &&
                                i % stride % size_t(clean.value_dim) == 5;
              if (sees && i % stride < stride - 1) {
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

TEST(SoftmaxAttentionTest, BadArgumentsAreNamed) {
  const Case c(4, 4, 2, 10, 3);
  std::vector<float> cache(c.cache_floats()), y(100), scratch(10000);
  const auto why = [&](auto change) {
    SoftmaxAttentionArgs args = c.Args(0, 3, cache.data(), y.data(), scratch.data());
    change(args);
    const char* const reason = CheckSoftmaxAttention(args);
    return std::string(reason == nullptr ? "" : reason);
  };
  EXPECT_EQ(why([](auto&) {}), "");
  EXPECT_EQ(why([](auto& a) { a.queries = 0; }), "key_dim, value_dim, queries >= 1");
  EXPECT_EQ(why([](auto& a) { a.position = -1; }), "position, window >= 0");
  EXPECT_EQ(why([](auto& a) { a.window = 200; }), "a ring has a window, and blocks for it");
  EXPECT_EQ(why([](auto& a) { a.window = 0; }), "a ring has a window, and blocks for it");
  EXPECT_EQ(why([](auto& a) { a.cache = nullptr; }), "cache, y and scratch must be set");
  EXPECT_EQ(why([](auto& a) { a.block_stride = 500; }), "block_stride >= the floats of a head");
  EXPECT_EQ(why([](auto& a) { a.y_stride = 7; }), "y_stride >= queries * value_dim");
}

}  // namespace
}  // namespace rivulet::kernels
