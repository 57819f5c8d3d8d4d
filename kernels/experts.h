// SPDX-License-Identifier: Apache-2.0
// A mixture of experts [Shazeer 2017] in the place of a feed-forward: a router chooses k of E
// experts for each token row h, and the row is the weighted sum of their outputs.
//
//   z = R h                                     one score an expert; R [E, hidden] in float32
//   kSoftmax   c = z                            w = softmax of z over the chosen
//   kSigmoid   s = sigmoid(z), c = s + bias     w = s of the chosen, or s / (sum of them + epsilon)
//              [DeepSeek-V3 2024]               the bias changes the choice alone
//   chosen     the k largest c. With groups of E / groups neighbours: a group's score is the sum of
//              its two largest c; only experts of the `kept_groups` best groups are chosen.
//   y += sum over the chosen, in ascending order of e, of  scale w_e expert_e(h)
//        each step is y = fma(scale w_e, expert_e(h), y)
//
// A softmax over all experts whose chosen weights are divided by their sum is kSoftmax, too.
// Equal c go to the lower number. A row with a score that is not a number chooses experts 0 to k -
// 1, with weights that are not numbers, so its outputs are not finite. z is float32, the product of
// gemm.h; everything from z to w is double, in ascending order of experts, and rounded once. So the
// choice and the weights of a row depend on its h alone.
// Tested by: tests/parity/experts_test.cc
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rivulet::kernels {

enum class RouterForm : uint8_t { kSoftmax, kSigmoid };

struct Router {
  RouterForm form = RouterForm::kSoftmax;
  int experts = 0, chosen = 0;      // E; k, at most E
  int groups = 1, kept_groups = 1;  // of kSigmoid; groups divides E, k <= E kept_groups / groups
  bool normalized = true;           // kSigmoid: w is divided by the sum
  double epsilon = 0;
  float scale = 1;
};

// Space of RouteExperts. Allocates nothing once it has seen a router of as many experts.
struct RouterScratch {
  std::vector<double> scores, choice, groups, best;
  std::vector<int32_t> best_experts;
};

struct RouteArgs {
  Router router;
  const float* scores = nullptr;  // z [rows, ld]
  const float* bias = nullptr;    // [E], of kSigmoid; null: 0
  int rows = 0, ld = 0;
  int32_t* experts = nullptr;        // [rows, k], ascending in a row
  float* weights = nullptr;          // [rows, k]: scale w
  RouterScratch* scratch = nullptr;  // of this call alone; unused by RouteExpertsRef
};
// Thread: any; disjoint rows may be routed at once. Cost: E comparisons and, for kSigmoid, E
// exponentials a row.
void RouteExperts(const RouteArgs& args);
void RouteExpertsRef(const RouteArgs& args);  // by sorting; tests only

// The rows of each expert, so that a pass reads each expert once.
struct ExpertRows {
  std::vector<int32_t> begin;  // [E + 1]: where expert e's rows begin in the next two
  std::vector<int32_t> rows;   // [rows * k]: ascending for each expert
  std::vector<float> weights;  // [rows * k]

  // Allocates nothing once it has seen as many rows.
  void Group(const Router& router, int num_rows, const int32_t* experts, const float* chosen);
  int count(int expert) const { return begin[size_t(expert) + 1] - begin[size_t(expert)]; }
};

}  // namespace rivulet::kernels
