// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/experts.h"

namespace rivulet::kernels {
namespace {

std::vector<int> Descending(const std::vector<double>& values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[size_t(a)] > values[size_t(b)]; });
  return order;
}

}  // namespace

void RouteExpertsRef(const RouteArgs& args) {
  const Router& router = args.router;
  const size_t size = size_t(router.experts / router.groups), k = size_t(router.chosen);
  for (size_t row = 0; row < size_t(args.rows); ++row) {
    const float* const z = args.scores + row * size_t(args.ld);
    std::vector<double> s(z, z + router.experts), c, groups;
    if (router.form == RouterForm::kSigmoid) {
      for (double& score : s) score = 1 / (1 + std::exp(-score));
    }
    c = s;
    for (size_t e = 0; e < c.size() && args.bias != nullptr; ++e) c[e] += double{args.bias[e]};
    for (size_t g = 0; g < c.size(); g += size) {
      std::vector<double> group(c.begin() + std::ptrdiff_t(g),
                                c.begin() + std::ptrdiff_t(g + size));
      std::sort(group.rbegin(), group.rend());
      groups.push_back(size > 1 ? group[0] + group[1] : group[0]);
    }
    const std::vector<int> best = Descending(groups);
    for (size_t g = size_t(router.kept_groups); g < best.size(); ++g) {
      std::fill_n(c.begin() + std::ptrdiff_t(size_t(best[g]) * size), size, -HUGE_VAL);
    }
    std::vector<int> chosen = Descending(c);
    chosen.resize(k);
    std::sort(chosen.begin(), chosen.end());
    double sum = 0;
    std::vector<double> w;
    for (const int e : chosen) {
      w.push_back(router.form == RouterForm::kSigmoid ? s[size_t(e)] : std::exp(s[size_t(e)]));
      sum += w.back();
    }
    if (router.form == RouterForm::kSigmoid) sum = router.normalized ? sum + router.epsilon : 1;
    for (size_t i = 0; i < k; ++i) {
      args.experts[row * k + i] = chosen[i];
      args.weights[row * k + i] = static_cast<float>(w[i] / sum * double{router.scale});
    }
  }
}

}  // namespace rivulet::kernels
