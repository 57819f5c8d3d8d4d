// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_run_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

constexpr int kFirstHalfwayBucket = 64;

absl::Status CheckRow(const RunRow& row, int num_steps, const BackendLimits& limits,
                      const ModelConfig& config) {
  if (row.slot <= kGuardSlot || row.slot > limits.num_slots) {
    return absl::InternalError(absl::StrCat("slot ", row.slot, " is not in 1..", limits.num_slots));
  }
  if (row.tokens.empty() || (!row.targets.empty() && row.targets.size() != row.tokens.size())) {
    return absl::InternalError("a row feeds at least one token, and has all targets or none");
  }
  if (row.drafts != 0 || row.guesses != 0)
    return absl::InternalError("this backend checks no drafts");
  if (row.position < 0 || (row.sample && row.max_samples < 1)) {
    return absl::InternalError(
        absl::StrCat("position ", row.position, ", max_samples ", row.max_samples));
  }
  const int64_t end = row.position + std::ssize(row.tokens) +
                      (row.sample ? std::min(row.max_samples, num_steps) - 1 : 0);
  if (limits.context > 0 && end > limits.context) {
    return absl::InternalError(
        absl::StrCat("position ", end, " is beyond the context of ", limits.context));
  }
  for (const int32_t token : row.tokens) {
    if (token < 0 || token >= config.vocab_size)
      return absl::InternalError(absl::StrCat("token ", token));
  }
  for (const int32_t target : row.targets) {
    if (target < 0 || target >= config.num_output_tokens())
      return absl::InternalError(absl::StrCat("target ", target));
  }
  for (const OutputRequest& request : row.outputs) {
    if (request.token_index < 0 || size_t(request.token_index) >= row.tokens.size())
      return absl::InternalError(absl::StrCat("outputs after token ", request.token_index));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int> CudaBuckets(int max_rows) {
  std::vector<int> buckets;
  for (int64_t rows = 1; rows < max_rows; rows *= 2) {
    buckets.push_back(int(rows));
    const int64_t halfway = rows + rows / 2;
    if (rows >= kFirstHalfwayBucket && halfway < max_rows) buckets.push_back(int(halfway));
  }
  buckets.push_back(max_rows);
  return buckets;
}

int CudaBucketFor(std::span<const int> buckets, int rows) {
  return int(std::lower_bound(buckets.begin(), buckets.end(), rows) - buckets.begin());
}

absl::Status CheckCudaRun(const Run& run, const BackendLimits& limits, const ModelConfig& config) {
  if (run.rows.empty() || int(run.rows.size()) > limits.max_rows || run.num_steps < 1 ||
      run.num_steps > limits.max_steps) {
    return absl::InternalError(absl::StrCat("a run of ", run.rows.size(), " rows and ",
                                            run.num_steps, " steps; at most ", limits.max_rows,
                                            " and ", limits.max_steps));
  }
  size_t tokens = 0;
  for (const RunRow& row : run.rows) {
    RIVULET_RETURN_IF_ERROR(CheckRow(row, run.num_steps, limits, config));
    tokens += row.tokens.size();
  }
  if (tokens > size_t(limits.max_tokens)) {
    return absl::InternalError(absl::StrCat(tokens, " tokens; at most ", limits.max_tokens));
  }
  return absl::OkStatus();
}

CudaRunPlan::CudaRunPlan(const BackendLimits& limits) {
  tokens.reserve(size_t(limits.max_tokens));
  positions.reserve(size_t(limits.max_tokens));
  segments.reserve(size_t(limits.max_rows));
  outputs.reserve(size_t(limits.max_tokens));
  wanted_.reserve(size_t(limits.max_tokens));
}

size_t CudaRunPlan::MaxRecords(const BackendLimits& limits) {
  // First step: a target for every token, a draw for every row.
  return size_t(limits.max_tokens) + size_t(limits.max_rows) * size_t(limits.max_steps);
}

void CudaRunPlan::Build(const Run& run) {
  tokens.clear();
  positions.clear();
  segments.clear();
  outputs.clear();
  raw.clear();
  plain = true;
  rows = int(run.rows.size());
  num_steps = run.num_steps;
  first_records = 0;
  num_long = 0;
  for (int i = 0; i < rows; ++i) {
    const RunRow& row = run.rows[size_t(i)];
    const int count = int(row.tokens.size());
    plain = plain && count == 1 && row.sample && row.targets.empty() && row.outputs.empty();
    wanted_.assign(size_t(count), row.targets.empty() ? 0 : 1);
    for (const OutputRequest& request : row.outputs) wanted_[size_t(request.token_index)] = 1;
    segments.push_back({token_rows(), count});
    if (count >= kCudaLongSegment) ++num_long;
    const size_t first_output = outputs.size();
    for (int t = 0; t < count; ++t) {
      const bool sample = row.sample && t + 1 == count;
      if (wanted_[size_t(t)] != 0 || sample) {
        CudaOutputRow output;
        output.token_row = token_rows();
        output.row = i;
        output.sample = sample;
        if (!row.targets.empty()) {
          output.target = row.targets[size_t(t)];
          output.target_record = first_records++;
        }
        if (sample) output.sample_record = first_records++;
        outputs.push_back(output);
      }
      tokens.push_back(row.tokens[size_t(t)]);
      positions.push_back(row.position + t);
    }
    const int first_token = segments.back().first_token_row;
    for (const OutputRequest& request : row.outputs) {
      const auto found =
          std::lower_bound(outputs.begin() + ptrdiff_t(first_output), outputs.end(),
                           first_token + request.token_index,
                           [](const CudaOutputRow& o, int token) { return o.token_row < token; });
      raw.push_back({int(found - outputs.begin()), request.destination});
    }
  }
  std::stable_sort(raw.begin(), raw.end(), [](const CudaRawOutput& a, const CudaRawOutput& b) {
    return a.output_row < b.output_row;
  });
}

CudaRecordOrder::CudaRecordOrder(int max_rows) { live_.reserve(size_t(max_rows)); }

void CudaRecordOrder::Start(const Run& run, const CudaRunPlan& plan) {
  run_ = &run;
  plan_ = &plan;
  live_.clear();
  for (int i = 0; i < int(run.rows.size()); ++i) {
    const RunRow& row = run.rows[size_t(i)];
    if (row.sample) live_.push_back({i, std::min(row.max_samples, run.num_steps)});
  }
  step_ = 0;
  output_ = 0;
  target_taken_ = false;
  at_ = 0;
  done_ = false;
  Find();
}

bool CudaRecordOrder::FindFirst() {
  for (; output_ < plan_->outputs.size(); ++output_, target_taken_ = false) {
    const CudaOutputRow& output = plan_->outputs[output_];
    next_.row = output.row;
    next_.position = plan_->positions[size_t(output.token_row)] + 1;
    if (output.target >= 0 && !target_taken_) {
      next_.place = output.target_record;
      next_.target = output.target;
      return true;
    }
    if (output.sample) {
      next_.place = output.sample_record;
      next_.target = -1;
      return true;
    }
  }
  return false;
}

void CudaRecordOrder::Find() {
  if (step_ == 0 && FindFirst()) return;
  if (step_ == 0 || at_ == live_.size()) {
    std::erase_if(live_, [](const Live& live) { return live.left == 0; });
    ++step_;
    at_ = 0;
    done_ = live_.empty();
    if (done_) return;
  }
  const RunRow& row = run_->rows[size_t(live_[at_].row)];
  next_.row = live_[at_].row;
  next_.place = plan_->RecordPlace(step_, next_.row);
  next_.position = row.position + int64_t(row.tokens.size()) + step_;
  next_.target = -1;
}

void CudaRecordOrder::Take(bool ended) {
  if (next_.target >= 0) {
    target_taken_ = true;
    Find();
    return;
  }
  if (step_ == 0) {
    // Outputs and live_ are both in row order.
    while (live_[at_].row != next_.row) ++at_;
    ++output_;
    target_taken_ = false;
  }
  Live& live = live_[at_++];
  live.left = ended ? 0 : live.left - 1;
  Find();
}

}  // namespace rivulet
