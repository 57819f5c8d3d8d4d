// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_run_block.h"

#include <algorithm>

namespace rivulet {
namespace {

using kernels::CudaOutputWork;
using kernels::CudaSegment;

// Allocates arrays one behind the other.
class Cursor {
 public:
  explicit Cursor(void* base) : base_(reinterpret_cast<uintptr_t>(base)) {}

  template <typename T>
  void Place(T** array, size_t count) {
    constexpr size_t kArrayAlignment = 16;
    static_assert(alignof(T) <= kArrayAlignment);
    *array = reinterpret_cast<T*>(base_ + used_);
    used_ = (used_ + count * sizeof(T) + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
  }
  size_t used() const { return used_; }

 private:
  uintptr_t base_;
  size_t used_ = 0;
};

CudaRunBlock PlaceCounts(void* base, size_t bucket, size_t rows, size_t token_rows,
                         size_t outputs) {
  CudaRunBlock block;
  Cursor cursor(base);
  cursor.Place(&block.step.outputs, bucket);
  cursor.Place(&block.step.segments, bucket);
  cursor.Place(&block.step.positions, bucket);
  cursor.Place(&block.step.tokens, bucket);
  if (token_rows > 0) {
    cursor.Place(&block.outputs, outputs);
    cursor.Place(&block.segments, rows);
    cursor.Place(&block.positions, token_rows);
    cursor.Place(&block.tokens, token_rows);
    cursor.Place(&block.gather, outputs);
    cursor.Place(&block.as_output, rows);
  }
  block.bytes = cursor.used();
  return block;
}

int Draws(const Run& run, const RunRow& row) {
  return row.sample ? std::min(row.max_samples, run.num_steps) : 0;
}

CudaOutputWork Work(const Run& run, const CudaRunPlan& plan, const CudaOutputRow& output,
                    uint32_t sequence) {
  const RunRow& row = run.rows[size_t(output.row)];
  CudaOutputWork work;
  work.position = plan.positions[size_t(output.token_row)] + 1;
  work.slot = row.slot;
  work.row = output.row;
  work.target = output.target;
  work.target_record = std::max(output.target_record, 0);
  work.draws_left = output.sample ? Draws(run, row) : 0;
  work.draw_record = std::max(output.sample_record, 0);
  work.next_record = plan.RecordPlace(1, output.row);
  work.record_stride = plan.rows;
  work.sequence = sequence;
  return work;
}

void FillFirst(const Run& run, const CudaRunPlan& plan, uint32_t sequence,
               const CudaRunBlock& block) {
  std::copy(plan.tokens.begin(), plan.tokens.end(), block.tokens);
  std::copy(plan.positions.begin(), plan.positions.end(), block.positions);
  int next_long = 0, next_short = plan.num_long;
  for (int i = 0; i < plan.rows; ++i) {
    const RunRow& row = run.rows[size_t(i)];
    const CudaFirstSegment& segment = plan.segments[size_t(i)];
    int& place = segment.num_tokens >= kCudaLongSegment ? next_long : next_short;
    block.segments[place++] = {row.slot, segment.first_token_row, segment.num_tokens, i};
    block.as_output[i] = row.count_as_output ? 1 : 0;
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    block.outputs[i] = Work(run, plan, plan.outputs[i], sequence);
    block.gather[i] = plan.outputs[i].token_row;
  }
}

}  // namespace

CudaRunBlock CudaRunBlock::Place(void* base, int bucket, const CudaRunPlan& plan) {
  if (plan.plain) return PlacePlain(base, bucket);
  return PlaceCounts(base, size_t(bucket), size_t(plan.rows), plan.tokens.size(),
                     plan.outputs.size());
}

CudaRunBlock CudaRunBlock::PlacePlain(void* base, int bucket) {
  return PlaceCounts(base, size_t(bucket), 0, 0, 0);
}

CudaRunBlock CudaRunBlock::PlacePrompt(void* base, int bucket, int token_rows) {
  return PlaceCounts(base, size_t(bucket), 1, size_t(token_rows), 1);
}

size_t CudaRunBlock::MaxBytes(const BackendLimits& limits) {
  const auto rows = size_t(limits.max_rows), tokens = size_t(limits.max_tokens);
  return PlaceCounts(nullptr, rows, rows, tokens, tokens).bytes;
}

void PadCudaPrompt(int tokens, int outputs, int token_rows, const CudaRunBlock& block) {
  std::fill(block.tokens + tokens, block.tokens + token_rows, int32_t{0});
  std::fill(block.positions + tokens, block.positions + token_rows, int64_t{0});
  if (outputs == 0) {
    block.outputs[0] = CudaOutputWork();
    block.gather[0] = 0;
  }
  if (tokens > 0) return;
  block.segments[0] = CudaSegment();
  block.as_output[0] = 0;
}

void FillIdleCudaRunBlock(int bucket, const CudaRunBlock& block) {
  std::fill_n(block.step.outputs, bucket, CudaOutputWork());
  std::fill_n(block.step.segments, bucket, CudaSegment());
  std::fill_n(block.step.positions, bucket, int64_t{0});
  std::fill_n(block.step.tokens, bucket, int32_t{0});
}

void FillCudaRunBlock(const Run& run, const CudaRunPlan& plan, int bucket, uint32_t sequence,
                      const CudaRunBlock& block) {
  FillIdleCudaRunBlock(bucket, block);
  for (int i = 0; i < plan.rows; ++i) {
    // Not plain: the first step activates the rows that continue.
    block.step.segments[i] = {run.rows[size_t(i)].slot, i, plan.plain ? 1 : 0, i};
    block.step.outputs[i].slot = run.rows[size_t(i)].slot;
    block.step.outputs[i].row = i;
  }
  if (!plan.plain) {
    FillFirst(run, plan, sequence, block);
    return;
  }
  for (int i = 0; i < plan.rows; ++i) {
    block.step.tokens[i] = plan.tokens[size_t(i)];
    block.step.positions[i] = plan.positions[size_t(i)];
    block.step.outputs[i] = Work(run, plan, plan.outputs[size_t(i)], sequence);
  }
}

}  // namespace rivulet
