// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rivulet::kernels {
namespace {

constexpr double kRefused = -std::numeric_limits<double>::infinity();

// The `count` largest values above kRefused, by falling value; of equal ones the lower index first.
class Largest {
 public:
  explicit Largest(int count) : most_(size_t(count)) { indices_.reserve(most_); }

  void Add(double value, int32_t index) {
    const bool full = indices_.size() == most_;
    if (value == kRefused || (full && !(value > values_.back()))) return;
    if (full) {
      values_.pop_back();
      indices_.pop_back();
    }
    const auto at = std::upper_bound(values_.begin(), values_.end(), value, std::greater<>());
    indices_.insert(indices_.begin() + (at - values_.begin()), index);
    values_.insert(at, value);
  }
  void Clear() {
    values_.clear();
    indices_.clear();
  }
  const std::vector<int32_t>& indices() const { return indices_; }
  const std::vector<double>& values() const { return values_; }

 private:
  const size_t most_;
  std::vector<double> values_;
  std::vector<int32_t> indices_;
};

class RowRouter {
 public:
  explicit RowRouter(const RouteArgs& args)
      : args_(args),
        router_(args.router),
        scores_(size_t(router_.experts)),
        choice_(scores_.size()),
        best_(router_.chosen) {}

  void Route(int row) {
    const float* const z = args_.scores + size_t(row) * size_t(args_.ld);
    const size_t at = size_t(row) * size_t(router_.chosen);
    const bool numbers =
        std::none_of(z, z + router_.experts, [](float score) { return std::isnan(score); });
    best_.Clear();
    if (numbers) Score(z);
    for (int e = 0; e < router_.experts; ++e) best_.Add(numbers ? choice_[size_t(e)] : -e, e);
    std::copy(best_.indices().begin(), best_.indices().end(), args_.experts + at);
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

  void RefuseGroups() {
    const size_t size = scores_.size() / size_t(router_.groups);
    Largest kept(router_.kept_groups), two(2);
    for (int g = 0; g < router_.groups; ++g) {
      two.Clear();
      for (size_t e = size_t(g) * size; e < size_t(g + 1) * size; ++e) two.Add(choice_[e], 0);
      double score = 0;
      for (const double c : two.values()) score += c;
      kept.Add(score, g);
    }
    for (int g = 0; g < router_.groups; ++g) {
      const auto& indices = kept.indices();
      if (std::find(indices.begin(), indices.end(), g) != indices.end()) continue;
      std::fill_n(choice_.begin() + std::ptrdiff_t(size_t(g) * size), size, kRefused);
    }
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
  std::vector<double> scores_, choice_;  // s, or z; c
  Largest best_;
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
