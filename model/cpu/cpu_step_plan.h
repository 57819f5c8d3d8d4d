// SPDX-License-Identifier: Apache-2.0
// CpuStepPlan: cuts the tokens of one step into segments, and groups segments into pieces of work
// for threads. It decides speed alone: on the CPU no cut changes a bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/cpu/cpu_network.h"

namespace rivulet {

// Token rows of one pass: enough to run the matrix products at full rate, few enough that the
// activations fit into the second-level cache (Solo), or nearly (Shared, for long prompts).
inline constexpr int kSharedRows = 128;
inline constexpr int kSoloRows = 32;
// Tokens of the longest segment of a Solo pass: a row with drafts. A segment is in one piece, so a
// piece may have kSoloTokens - 1 rows more.
inline constexpr int kSoloTokens = 9;
// ... of a model with experts: a pass reads each expert for few of its rows.
inline constexpr int kExpertRows = 512;

// Data of a segment that the forward pass does not need.
struct CpuWork {
  int row = 0;          // index into Run::rows
  int first_token = 0;  // index into RunRow::tokens of the segment's first
  int record = 0;       // the segment's first record, index into the run's records
  int drafts = 0;       // the last tokens of the segment, if it samples
  int output_row = 0;   // first output row within its piece
  bool sample = false;  // draw after the segment's last token
  bool tells = false;   // the row's targets and raw outputs are of these tokens
};

// The segments of one pass.
struct CpuPiece {
  int begin = 0, end = 0;
  int output_rows = 0;
};

// Thread: one thread plans; const while threads work on it.
class CpuStepPlan {
 public:
  explicit CpuStepPlan(bool experts) : experts_(experts) {}

  void Clear();

  // Adds tokens of row `index` in segments of at most shared_rows(). `num_records`: the number of
  // records of the run; grows by one for each target, and by one and the drafts if `sample`.
  // `replay`: of a row with drafts.
  void Add(const RunRow& row, int index, float* state, std::span<const int32_t> tokens,
           int64_t position, bool sample, CpuReplay* replay, int* num_records);

  // Cuts pieces once all segments are added, and decides how threads share them.
  // `multiply_adds`: of the model's matrix products for one token row. `short_weights`: weights of
  // 16 bits.
  void CutPieces(int threads, int64_t multiply_adds, bool short_weights);

  // Most token rows of a Shared pass.
  int shared_rows() const { return experts_ ? kExpertRows : kSharedRows; }
  bool empty() const { return segments.empty(); }
  std::span<const CpuSegment> segments_of(const CpuPiece& piece) const {
    return {&segments[size_t(piece.begin)], size_t(piece.end - piece.begin)};
  }

  std::vector<CpuSegment> segments;
  std::vector<CpuWork> work;  // [segments]
  std::vector<CpuPiece> pieces;
  // Alone: the calling thread does everything. Solo: threads take whole pieces; not with experts,
  // which all rows should share. Else: Shared.
  enum class Mode : uint8_t { kAlone, kSolo, kShared };
  Mode mode = Mode::kAlone;

 private:
  const bool experts_;
};

}  // namespace rivulet
