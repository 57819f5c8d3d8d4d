// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_step_plan.h"

#include <algorithm>

namespace rivulet {
namespace {

// From this number of rows per thread on, each thread works alone: with fewer rows a step is bound
// by reading weights, which threads should share. With float32 weights it is always bound by them:
// 28 k against 25 k tokens/s at 256 rows (2026-11-20).
constexpr int kSoloRowsPerThread = 12;

// Models with more weights than this are read from memory for each piece. Each thread then works
// alone only with whole pieces: at 32 rows, sharing took 5 to 12 % less time (2026-11-29).
constexpr int64_t kCachedWeights = 1 << 24;

// With fewer multiply-adds than this, one thread does the step: to wake another thread and wait for
// it takes as long, and much longer if another process wants the core.
constexpr int64_t kMinSharedWork = 1 << 20;

}  // namespace

void CpuStepPlan::Clear() {
  segments.clear();
  work.clear();
  pieces.clear();
}

void CpuStepPlan::Add(const RunRow& row, int index, float* state, std::span<const int32_t> tokens,
                      int64_t position, bool sample, CpuReplay* replay, int* num_records) {
  const auto most = size_t(shared_rows());
  for (size_t at = 0; at < tokens.size(); at += most) {
    const size_t count = std::min(tokens.size() - at, most);
    const bool last = at + count == tokens.size();
    CpuSegment segment;
    segment.state = state;
    segment.position = position + int64_t(at);
    segment.tokens = tokens.subspan(at, count);
    segment.replay = replay;
    CpuWork its;
    its.row = index;
    its.first_token = int(at);
    its.record = *num_records;
    its.sample = sample && last;
    its.drafts = its.sample ? row.drafts : 0;
    its.tells = !row.targets.empty() || !row.outputs.empty();
    segment.outputs = its.tells ? int(count) : its.sample ? 1 + its.drafts : 0;
    *num_records += (row.targets.empty() ? 0 : int(count)) + (its.sample ? 1 + its.drafts : 0);
    segments.push_back(segment);
    work.push_back(its);
  }
}

void CpuStepPlan::CutPieces(int threads, int64_t multiply_adds, bool short_weights) {
  const int count = int(segments.size());
  const int rows_in_all = TokenRows(segments);
  const bool short_segments = std::ranges::all_of(segments, [](const CpuSegment& segment) {
    return segment.tokens.size() <= size_t{kSoloTokens};
  });
  if (threads == 1 || rows_in_all * multiply_adds < kMinSharedWork) {
    mode = Mode::kAlone;
  } else {
    const int least = multiply_adds > kCachedWeights ? kSoloRows : kSoloRowsPerThread;
    const bool many = !experts_ && short_segments && rows_in_all >= least * threads;
    mode = many && short_weights ? Mode::kSolo : Mode::kShared;
  }
  // Solo: equal pieces, as many for each thread. Else: all segments that fit.
  const bool solo = mode == Mode::kSolo;
  const int rows_at_once = kSoloRows * threads,
            solo_pieces = (rows_in_all + rows_at_once - 1) / rows_at_once * threads;
  CpuPiece piece;
  int rows = 0, before = 0;  // of the piece; of all segments so far
  for (int i = 0; i < count; ++i) {
    const int tokens = int(segments[size_t(i)].tokens.size());
    const bool full =
        solo ? before >= int(int64_t{rows_in_all} * int64_t(pieces.size() + 1) / solo_pieces)
             : rows + tokens > shared_rows();
    if (full) {
      pieces.push_back(piece);
      piece = {i, i, 0};
      rows = 0;
    }
    work[size_t(i)].output_row = piece.output_rows;
    piece.output_rows += OutputRows({&segments[size_t(i)], 1});
    piece.end = i + 1;
    rows += tokens;
    before += tokens;
  }
  if (count > 0) pieces.push_back(piece);
}

}  // namespace rivulet
