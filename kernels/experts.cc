// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace rivulet::kernels {
namespace {

constexpr double kRefused = -std::numeric_limits<double>::infinity();

class RowRouter {
 public:
  explicit RowRouter(const RouteArgs& args)
      : args_(args),
        router_(args.router),
        scores_(args.scratch->scores),
        choice_(args.scratch->choice),
        best_(args.scratch->best),
        best_experts_(args.scratch->best_experts) {
    scores_.resize(size_t(router_.experts));
    choice_.resize(scores_.size());
    best_.reserve(size_t(router_.chosen));
    best_experts_.reserve(size_t(router_.chosen));
  }

  void Route(int row) {
    const float* const z = args_.scores + size_t(row) * size_t(args_.ld);
    const size_t at = size_t(row) * size_t(router_.chosen);
    const bool numbers =
        std::none_of(z, z + router_.experts, [](float score) { return std::isnan(score); });
    best_.clear();
    best_experts_.clear();
    if (numbers) Score(z);
    for (int e = 0; e < router_.experts; ++e) Offer(numbers ? choice_[size_t(e)] : -e, e);
    std::copy(best_experts_.begin(), best_experts_.end(), args_.experts + at);
    std::sort(args_.experts + at, args_.experts + at + router_.chosen);
    Weigh(numbers, args_.experts + at, args_.weights + at);
  }

 private:
  // s and c of all experts.
  void Score(const float* z) {
    for (size_t e = 0; e < scores_.size(); ++e) {
      const bool sigmoid = router_.form == RouterForm::kSigmoid;
      scores_[e] = sigmoid ? 1 / (1 + std::exp(-double{z[e]})) : double{z[e]};
      // An infinite score must not look like a refused expert.
      choice_[e] = std::max(scores_[e] + double{args_.bias == nullptr ? 0 : args_.bias[e]},
                            std::numeric_limits<double>::lowest());
    }
    if (router_.kept_groups < router_.groups) RefuseGroups();
  }

  // Of equal groups the ones before are better.
  void RefuseGroups() {
    const size_t size = scores_.size() / size_t(router_.groups);
    std::vector<double>& groups = args_.scratch->groups;
    groups.clear();
    for (auto c = choice_.begin(); c != choice_.end(); c += std::ptrdiff_t(size)) {
      double best = kRefused, second = kRefused;
      for (size_t i = 0; i < size; ++i) {
        second = std::max(second, std::min(best, c[std::ptrdiff_t(i)]));
        best = std::max(best, c[std::ptrdiff_t(i)]);
      }
      groups.push_back(size > 1 ? best + second : best);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      int better = 0;
      for (size_t h = 0; h < groups.size(); ++h) {
        better += groups[h] > groups[g] || (groups[h] == groups[g] && h < g);
      }
      if (better < router_.kept_groups) continue;
      std::fill_n(choice_.begin() + std::ptrdiff_t(g * size), size, kRefused);
    }
  }

  // Keeps the k largest by falling value; of equal ones the one offered first.
  void Offer(double value, int32_t expert) {
    const bool full = best_.size() == size_t(router_.chosen);
    if (value == kRefused || (full && !(value > best_.back()))) return;
    if (full) {
      best_.pop_back();
      best_experts_.pop_back();
    }
    const auto at = std::upper_bound(best_.begin(), best_.end(), value, std::greater<>());
    best_experts_.insert(best_experts_.begin() + (at - best_.begin()), expert);
    best_.insert(at, value);
  }

  void Weigh(bool numbers, const int32_t* experts, float* weights) {
    const auto k = size_t(router_.chosen);
    const auto of = [&](size_t i) { return scores_[size_t(experts[i])]; };
    if (!numbers) return (void)std::fill_n(weights, k, std::nanf(""));
    double largest = kRefused, sum = 0;
    const bool sigmoid = router_.form == RouterForm::kSigmoid;
    for (size_t i = 0; i < k; ++i) largest = std::max(largest, of(i));
    const auto weight = [&](size_t i) { return sigmoid ? of(i) : std::exp(of(i) - largest); };
    for (size_t i = 0; i < k; ++i) sum += weight(i);
    const double by = sigmoid && !router_.normalized ? 1 : sum + (sigmoid ? router_.epsilon : 0);
    for (size_t i = 0; i < k; ++i) {
      weights[i] = static_cast<float>(weight(i) / by * double{router_.scale});
    }
  }

  const RouteArgs& args_;
  const Router& router_;
  std::vector<double>& scores_;         // s, or z
  std::vector<double>&choice_, &best_;  // c; c of the best experts so far
  std::vector<int32_t>& best_experts_;  // their numbers
};

}  // namespace

void RouteExperts(const RouteArgs& args) {
  RowRouter router(args);
  for (int row = 0; row < args.rows; ++row) router.Route(row);
}

void ExpertRows::Group(const Router& router, int num_rows, const int32_t* experts,
                       const float* chosen) {
  const size_t entries = size_t(num_rows) * size_t(router.chosen);
  begin.assign(size_t(router.experts) + 1, 0);
  rows.resize(entries);
  weights.resize(entries);
  for (size_t i = 0; i < entries; ++i) ++begin[size_t(experts[i]) + 1];
  for (size_t e = 1; e < begin.size(); ++e) begin[e] += begin[e - 1];
  for (size_t i = 0; i < entries; ++i) {
    const auto place = size_t(begin[size_t(experts[i])]++);  // becomes where the next one begins
    rows[place] = static_cast<int32_t>(i / size_t(router.chosen));
    weights[place] = chosen[i];
  }
  std::copy_backward(begin.begin(), begin.end() - 1, begin.end());
  begin[0] = 0;
}

}  // namespace rivulet::kernels
