// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/two_backends.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/conformance/tested_backend.h"

namespace rivulet::testing {

TwoBackends::TwoBackends(std::shared_ptr<const Model> model, std::unique_ptr<Backend> reference,
                         std::unique_ptr<Backend> tested, int slots,
                         const BackendTolerance& tolerance, uint32_t seed)
    : model_(std::move(model)),
      reference_(std::move(reference)),
      tested_(std::move(tested)),
      slots_(slots),
      tolerance_(tolerance),
      random_(seed),
      fed_(size_t(slots) + 1),
      last_(size_t(slots) + 1, -1) {}

SlotSampler TwoBackends::RandomSampler() {
  SlotSampler sampler;
  sampler.params.seed = random_();
  sampler.params.temperature = UpTo(3) == 0 ? 0.0f : 0.5f + 0.25f * float(UpTo(3));
  sampler.sample_index = uint32_t(UpTo(3));
  if (UpTo(1) == 0) {
    sampler.want_logprobs = true;
    sampler.num_top_logprobs = UpTo(5);
  }
  if (UpTo(1) == 0) sampler.stop_ids = {Token(), Token()};
  if (model_->config().output.type == OutputType::kMixtureOfLogistics) return sampler;
  if (UpTo(1) == 0) {
    sampler.params.frequency_penalty = 0.5f * float(UpTo(3));
    sampler.params.presence_penalty = 0.5f * float(UpTo(3));
    sampler.params.repetition_penalty = 1 + 0.5f * float(UpTo(2));
  }
  if (UpTo(1) == 0) sampler.params.logit_bias = {{Token(), 2.0f}};
  sampler.params.top_k = UpTo(8);
  if (UpTo(1) == 0) sampler.params.top_p = 0.7f;
  if (UpTo(2) == 0) sampler.params.min_p = 0.1f;
  return sampler;
}

void TwoBackends::Both(const std::function<absl::Status(Backend&)>& operation) {
  EXPECT_EQ(operation(*reference_), absl::OkStatus());
  EXPECT_EQ(operation(*tested_), absl::OkStatus());
}

void TwoBackends::Zero(Slot slot) {
  Both([&](Backend& b) { return b.ZeroSlots({&slot, 1}); });
  fed_[size_t(slot)] = 0;
  last_[size_t(slot)] = -1;
}

void TwoBackends::RandomRun() {
  const auto slots = size_t(slots_);
  const int num_steps = 1 + UpTo(5);
  const bool just_draws = UpTo(1) == 0;  // a first step like any other
  std::vector<std::vector<int32_t>> tokens(slots), targets(slots);
  std::vector<std::vector<OutputRequest>> requests[2];
  std::vector<std::vector<float>> outputs[2];
  std::vector<rivulet::Run> runs(2);
  for (auto& r : requests) r.resize(slots);
  for (auto& o : outputs)
    o.assign(slots, std::vector<float>(size_t(model_->config().output_size())));
  for (Slot slot = 1; slot <= slots_; ++slot) {
    const auto i = size_t(slot) - 1;
    if (UpTo(3) == 0) continue;
    RunRow row;
    row.slot = slot;
    row.position = fed_[size_t(slot)];
    const bool goes_on = last_[size_t(slot)] >= 0;
    const int count = goes_on || just_draws || UpTo(1) == 0 ? 1 : 1 + UpTo(6);
    for (int t = 0; t < count; ++t) tokens[i].push_back(goes_on ? last_[size_t(slot)] : Token());
    row.count_as_output = goes_on;
    row.tokens = tokens[i];
    if (!just_draws && UpTo(3) == 0) {
      for (int t = 0; t < count; ++t) targets[i].push_back(Token());
      row.targets = targets[i];
    }
    const bool wants = !just_draws && UpTo(3) == 0;
    const int index = UpTo(count - 1);
    for (int b = 0; wants && b < 2; ++b) requests[b][i] = {{index, outputs[b][i].data()}};
    row.sample = just_draws || UpTo(4) > 0;
    row.max_samples = row.sample ? 1 + UpTo(6) : 0;
    for (int b = 0; b < 2; ++b) {
      row.outputs = requests[b][i];
      runs[size_t(b)].rows.push_back(row);
    }
  }
  if (runs[0].rows.empty()) return;
  std::vector<Record> records[2];
  Backend* backends[] = {reference_.get(), tested_.get()};
  for (int b = 0; b < 2; ++b) {
    runs[size_t(b)].num_steps = num_steps;
    ASSERT_EQ(backends[b]->Submit(runs[size_t(b)]), absl::OkStatus());
    records[b] = PollAll(*backends[b]);
  }
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    for (size_t j = 0; j < outputs[0][i].size(); ++j) {
      ASSERT_NEAR(outputs[1][i][j], outputs[0][i][j], tolerance_.outputs)
          << "raw outputs of slot " << i + 1;
    }
  }
  CompareRecords(runs[0], records[0], records[1]);
}

void TwoBackends::CompareRecords(const Run& run, const std::vector<Record>& expected,
                                 const std::vector<Record>& told) {
  ASSERT_EQ(told.size(), expected.size());
  for (const RunRow& row : run.rows) fed_[size_t(row.slot)] += int64_t(row.tokens.size());
  for (const RunRow& row : run.rows) last_[size_t(row.slot)] = -1;
  std::vector<size_t> seen(run.rows.size());  // records of each row
  for (size_t i = 0; i < expected.size(); ++i) {
    const Record &a = expected[i], &b = told[i];
    ASSERT_EQ(b.row, a.row) << i;
    ASSERT_EQ(b.position, a.position) << i;
    ASSERT_EQ(b.token, a.token) << i;
    ASSERT_EQ(b.stopped, a.stopped) << i;
    ASSERT_EQ(b.non_finite, a.non_finite) << i;
    ASSERT_EQ(std::isnan(b.logprob), std::isnan(a.logprob)) << i;
    if (!std::isnan(a.logprob)) {
      ASSERT_NEAR(b.logprob, a.logprob, tolerance_.logprobs) << i;
    }
    ASSERT_EQ(b.top.size(), a.top.size()) << i;
    for (size_t t = 0; t < a.top.size(); ++t) {
      // Those that are as likely, as far as the backends agree, may change places.
      const auto tied = [&](size_t one, size_t other) {
        return other >= a.top.size() ||
               std::fabs(a.top[one].logprob - a.top[other].logprob) <= tolerance_.logprobs;
      };
      if (!tied(t, t + 1) && (t == 0 || !tied(t, t - 1))) {
        ASSERT_EQ(b.top[t].token, a.top[t].token) << i;
      }
      ASSERT_NEAR(b.top[t].logprob, a.top[t].logprob, tolerance_.logprobs) << i;
    }
    const RunRow& row = run.rows[size_t(a.row)];
    const bool drawn = seen[size_t(a.row)]++ >= row.targets.size();
    if (drawn) {
      if (last_[size_t(row.slot)] >= 0) ++fed_[size_t(row.slot)];
      last_[size_t(row.slot)] = a.stopped ? -1 : a.token;
    }
  }
}

void TwoBackends::CompareStates() {
  std::vector<float> a, b;
  ASSERT_EQ(tested_->limits().bytes_per_slot, reference_->limits().bytes_per_slot);
  for (Slot slot = 1; slot <= slots_; ++slot) {
    ASSERT_EQ(tested_->StateFloats(slot), reference_->StateFloats(slot)) << "slot " << slot;
    a.resize(reference_->StateFloats(slot));
    b.resize(a.size());
    ASSERT_TRUE(reference_->ReadSlot(slot, a).ok());
    ASSERT_TRUE(tested_->ReadSlot(slot, b).ok());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(b[i], a[i], tolerance_.states * (1 + std::fabs(a[i]))) << "slot " << slot;
    }
  }
}

void TwoBackends::RandomOperation() {
  const Slot a = 1 + UpTo(slots_ - 1), b = 1 + UpTo(slots_ - 1);
  switch (UpTo(6)) {
    case 0: {
      const SlotSampler sampler = RandomSampler();
      Both([&](Backend& backend) { return backend.SetSampler(a, sampler); });
      break;
    }
    case 1:
      if (a == b) break;
      Both([&](Backend& backend) { return backend.CopySlot(a, b); });
      fed_[size_t(b)] = fed_[size_t(a)];
      last_[size_t(b)] = last_[size_t(a)];
      break;
    case 2:
      kept_.resize(reference_->StateFloats(a));
      ASSERT_TRUE(reference_->ReadSlot(a, kept_).ok());
      Both([&](Backend& backend) { return backend.WriteSlot(b, kept_); });
      fed_[size_t(b)] = fed_[size_t(a)];
      last_[size_t(b)] = -1;
      break;
    default:
      if (fed_[size_t(a)] > 25) Zero(a);
      if (fed_[size_t(b)] > 25) Zero(b);
      for (Slot slot = 1; slot <= slots_; ++slot) {
        if (fed_[size_t(slot)] > 30) Zero(slot);
      }
      RandomRun();
  }
}

void TwoBackends::Compare(int operations) {
  for (Slot slot = 1; slot <= slots_; ++slot) Zero(slot);
  for (int i = 0; i < operations; ++i) {
    SCOPED_TRACE(absl::StrCat("operation ", i));
    RandomOperation();
    if (::testing::Test::HasFatalFailure()) return;
  }
  CompareStates();
}

}  // namespace rivulet::testing
