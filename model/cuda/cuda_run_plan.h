// SPDX-License-Identifier: Apache-2.0
// The host's plan of a run on a device: the token rows of the first step, the head outputs that it
// needs, the place of every record, and the order of the records. Pure: no CUDA, no memory except
// its own vectors.
//
// Records of a run have places in a ring: first the first step's, one after another (a row's
// targets, then its draw); then one for every row and later step, at `place of the first step's end
// + (step - 1) x rows + row`. Rows that have ended leave holes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "model/backend.h"
#include "model/config.h"

namespace rivulet {

// Row counts for which a step is captured: powers of two, from 64 on also the numbers half way
// between, and max_rows. Ascending.
std::vector<int> CudaBuckets(int max_rows);
// The smallest of `buckets` that holds `rows`, as an index. REQUIRES: rows <= buckets.back().
int CudaBucketFor(std::span<const int> buckets, int rows);

// OK, or INTERNAL naming the rule of Backend::Submit that `run` breaks.
absl::Status CheckCudaRun(const Run& run, const BackendLimits& limits, const ModelConfig& config);

// From this number of tokens on, attention uses its kernels for long segments; below, reading the
// state takes longer than the tokens. Speed only.
inline constexpr int kCudaLongSegment = 16;

// Consecutive token rows of one row of the run.
struct CudaFirstSegment {
  int first_token_row = 0;
  int num_tokens = 0;
};

// A token row of the first step whose head outputs are wanted.
struct CudaOutputRow {
  int token_row = 0;
  int row = 0;          // index into Run::rows
  int32_t target = -1;  // to be scored; -1: none
  bool sample = false;
  int target_record = -1, sample_record = -1;  // places of its records
};

// A copy of one output row for the caller.
struct CudaRawOutput {
  int output_row = 0;  // index into CudaRunPlan::outputs
  float* destination = nullptr;
};

// Thread: one. Build allocates nothing after construction, except for raw outputs.
class CudaRunPlan {
 public:
  explicit CudaRunPlan(const BackendLimits& limits);

  // REQUIRES: CheckCudaRun is OK.
  void Build(const Run& run);

  // Every row feeds one token, draws, and wants nothing else: the first step is like the later
  // ones.
  bool plain = false;
  int rows = 0, num_steps = 0;
  std::vector<int32_t> tokens;             // [token rows]
  std::vector<int64_t> positions;          // [token rows]
  std::vector<CudaFirstSegment> segments;  // [rows]
  int num_long = 0;                        // segments with kCudaLongSegment tokens or more
  std::vector<CudaOutputRow> outputs;      // rising token_row
  std::vector<CudaRawOutput> raw;          // rising output_row
  int first_records = 0;                   // records of the first step

  int token_rows() const { return int(tokens.size()); }
  // Place of the record of `row` in `step` >= 1.
  int RecordPlace(int step, int row) const { return first_records + (step - 1) * rows + row; }
  // The most places that a run within `limits` needs.
  static size_t MaxRecords(const BackendLimits& limits);

 private:
  std::vector<uint8_t> wanted_;  // [tokens of one row]
};

// Which record of a run comes next. Thread: one; Take allocates nothing.
class CudaRecordOrder {
 public:
  explicit CudaRecordOrder(int max_rows);

  // `run` and `plan` must live until done().
  void Start(const Run& run, const CudaRunPlan& plan);
  bool done() const { return done_; }

  struct Expected {
    int place = 0;  // in the ring
    int row = 0;
    int64_t position = 0;
    int32_t target = -1;  // the scored token; -1: a drawn one
  };
  // REQUIRES: not done().
  const Expected& next() const { return next_; }
  // The next record has arrived; `ended`: it is a drawn one and ends its row.
  void Take(bool ended);

 private:
  struct Live {
    int row;
    int left;  // draws still possible
  };
  void Find();       // sets next_ and done_
  bool FindFirst();  // within the first step

  const Run* run_ = nullptr;
  const CudaRunPlan* plan_ = nullptr;
  bool done_ = true;
  Expected next_;
  int step_ = 0;
  size_t output_ = 0;          // first step: index into plan_->outputs ...
  bool target_taken_ = false;  // ... and whether its target was taken
  std::vector<Live> live_;     // rows that draw, in row order
  size_t at_ = 0;              // index into live_
};

}  // namespace rivulet
