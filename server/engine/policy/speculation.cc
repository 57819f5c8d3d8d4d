// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/speculation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace rivulet {
namespace {

constexpr double kAcceptanceWeight = 0.125, kCostWeight = 0.125;
// A pass is slower by accident, but hardly faster: much faster, something has changed.
constexpr double kFasterWeight = 0.25, kMuchFaster = 0.7;
constexpr double kMostSlowdown = 1.1;  // of other rows
constexpr double kLeastGain = 0.1;  // of a draft, in tokens, so that it may pay whatever it costs
// A draft has to raise the rate by this share for each row. The more rows, the less it can gain:
// soon less than the measured costs, and the acceptance of the row that seems best, are wrong by.
// More than kFewRows rows do not reach it, even with a right draft at no cost.
constexpr double kLeastWorth = 0.002;
static_assert(kLeastWorth * (kFewRows + 1) * (kFewRows + 1) > 1);
constexpr uint64_t kProbeEvery = 16, kProbeGuessEvery = 31, kDareEvery = 257;
constexpr uint64_t kPlainEvery = 64, kPlainLeast = 8;

// Gives one more draft to the row that gains most by it; -1: no row can use one.
int BestRow(std::span<const DraftView> rows, std::span<const int> drafts, int speculating_rows) {
  const auto speculating = std::ranges::count_if(drafts, [](int count) { return count > 0; });
  int best = -1;
  double most = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].adaptive || drafts[i] >= rows[i].most) continue;
    if (drafts[i] == 0 && speculating >= speculating_rows) continue;
    const double gain = std::pow(rows[i].rate, drafts[i] + 1);
    if (best >= 0 && gain <= most) continue;
    best = static_cast<int>(i);
    most = gain;
  }
  return best;
}

}  // namespace

void DraftAcceptance::Note(int drafted, int right) {
  for (int i = 0; i < std::min(drafted, right + 1); ++i) {
    was_right_ = i < right;
    rate_ += kAcceptanceWeight * ((was_right_ ? 1.0 : 0.0) - rate_);
  }
}

void PassCosts::Note(int rows, double seconds) {
  if (rows < 1 || rows > kMostRows) return;
  if (means_.size() <= static_cast<size_t>(rows)) means_.resize(static_cast<size_t>(rows) + 1, -1);
  double& mean = means_[static_cast<size_t>(rows)];
  if (mean < 0 || seconds < kMuchFaster * mean) mean = seconds;
  mean += (seconds < mean ? kFasterWeight : kCostWeight) * (seconds - mean);
}

void PassCosts::NoteGuess(double seconds) {
  guess_ = guess_ ? *guess_ + kCostWeight * (seconds - *guess_) : seconds;
}

std::optional<double> PassCosts::At(int rows) const {
  int above = rows, below = rows;
  while (above < std::ssize(means_) && !Measured(above)) ++above;
  if (!Measured(above)) return std::nullopt;
  while (below > 0 && !Measured(below)) --below;
  const double high = means_[static_cast<size_t>(above)];
  if (below == above || below == 0) return high;
  const double low = means_[static_cast<size_t>(below)];
  return low + (high - low) * (rows - below) / (above - below);
}

void PlanDrafts(std::span<const DraftView> rows, const PassCosts& costs,
                const BackendLimits& limits, uint64_t run, std::vector<int>* drafts) {
  drafts->assign(rows.size(), 0);
  int fed = static_cast<int>(rows.size());
  const int alone = fed;
  if (!costs.Measured(alone)) return;
  const double most_seconds = kMostSlowdown * *costs.At(fed);
  // One more draft leaves the pass within its limits. Beside other rows a pass grows by one token
  // row beyond what was measured, and rarely it may be too slow, as that may have changed.
  const auto fits = [&] {
    if (fed >= limits.max_tokens) return false;
    if (rows.size() == 1) return true;
    const std::optional<double> seconds = costs.At(fed + 1);
    if (!seconds) return costs.Measured(fed);
    return *seconds <= most_seconds || (fed == alone && run % kDareEvery == 0);
  };
  int speculating = 0;
  for (size_t i = 0; i < rows.size() && speculating < limits.drafts.rows; ++i) {
    int& count = (*drafts)[i];
    for (; !rows[i].adaptive && count < rows[i].most && fits(); ++fed) ++count;
    if (count > 0) ++speculating;
  }
  if (rows.size() > kFewRows) return;
  double tokens = static_cast<double>(rows.size());
  // The more rows, the less do drafts gain, and the more exactly must a pass without them be known.
  const uint64_t plain_every =
      std::max(kPlainLeast, kPlainEvery / std::max<uint64_t>(1, rows.size()));
  for (bool probes = run % plain_every == 0; !probes && fits();) {
    const int best = BestRow(rows, *drafts, limits.drafts.rows);
    if (best < 0) return;
    const DraftView& row = rows[static_cast<size_t>(best)];
    int& count = (*drafts)[static_cast<size_t>(best)];
    const double gain = std::pow(row.rate, count + 1);
    const std::optional<double> before = costs.At(fed), after = costs.At(fed + 1);
    const bool known = before && after;
    const auto pays = [&](double more) {
      const double least = tokens * (1 + kLeastWorth * alone);
      return (tokens + more) * *before >= least * *after;
    };
    probes = !known || gain < kLeastGain || !pays(gain);
    if (known && probes) {
      const bool dares = run % kDareEvery == 0;
      // Beside other rows no draft is tried that would not even pay if it were right.
      if (rows.size() > 1 && !pays(1) && !dares) return;
      // After a right draft the row is tried again at once.
      if (run % kProbeEvery != 1 && !dares && !(count == 0 && row.was_right)) return;
    }
    tokens += gain;
    ++count;
    ++fed;
  }
}

int PlanGuesses(const DraftView& row, const PassCosts& costs, int fed, int most, uint64_t run) {
  most = std::min(most, row.wanted.most);
  const std::optional<double> alone = costs.At(1);
  if (most <= 0 || !alone || !costs.Measured(fed)) return 0;
  if (run % kPlainEvery < 2) return 0;  // so that the second of these runs has no drafts either
  if (!row.wanted.adaptive) return most;
  if (!costs.guess()) return 1;
  int best = 0;
  double tokens = 1, most_rate = 1 / *alone, gain = 1;
  for (int count = 1; count <= most; ++count) {
    gain *= row.wanted.rate;
    if (gain < kLeastGain) break;
    tokens += gain;
    const std::optional<double> pass = costs.At(1 + count);
    const double rate = tokens / (pass.value_or(*alone) + count * *costs.guess());
    if (rate > most_rate) best = count;
    most_rate = std::max(most_rate, rate);
  }
  return best == 0 && run % kProbeGuessEvery == 0 ? 1 : best;
}

}  // namespace rivulet
