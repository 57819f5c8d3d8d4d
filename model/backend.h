// SPDX-License-Identifier: Apache-2.0
// Backend: the one seam between the engine and a device. It owns all device memory (weights, slots,
// scratch), feeds tokens, samples on the device that has the logits, and reports records.
// Implementations: CpuBackend, CudaBackend.
//
// Words: a *slot* holds the state of one sequence; a *row* is a place in a run; a *step* feeds one
// token to every row; a *run* is the steps that one Submit covers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/state_layout.h"
#include "model/expert_load.h"
#include "model/sampler.h"
#include "model/state_parts.h"

namespace rivulet {

using Slot = int32_t;
inline constexpr Slot kGuardSlot = 0;  // for padding rows; no sequence ever gets it

// A row of the table of contexts.
struct ContextSlots {
  int64_t context = 0;
  int slots = 0;  // that are chosen where no number is given; 0: none fits
};

// Rows of one run that have drafts (RunRow::drafts).
struct DraftLimits {
  int most = 0;      // drafts of one row; 0: no row may have any
  int guesses = 0;   // RunRow::guesses of one row
  int rows = 0;      // that may have drafts
  size_t bytes = 0;  // memory for these rows
};

struct BackendLimits {
  int num_slots = 0;        // sequences that fit: slots 1..num_slots
  int max_rows = 0;         // rows of one run
  int max_tokens = 0;       // tokens fed by the first step of one run, over all rows
  int max_steps = 1;        // largest Run::num_steps
  int preferred_steps = 1;  // run length that already hides the cost of a Submit
  // The number of prompt tokens in one run that keeps the device busy. With more tokens other rows
  // wait longer, and the prompts are hardly faster.
  int preferred_prefill_tokens = 256;
  bool late_masks = false;  // a RunRow::mask may become known while the run goes on
  DraftLimits drafts = {};
  int head_rows = 0;  // rows whose head outputs are computed at a time; 0: all rows of a run
  size_t bytes_per_slot = 0;      // state of one sequence, with room for `context` positions
  StateSize state = {};           // ... by number of tokens; {}: always bytes_per_slot
  int64_t context = 0;            // the number of positions that a slot holds; 0: no limit
  size_t weight_bytes = 0;        // weights in this backend's memory
  std::string numerics_id;        // backend's part in the bits of tokens, beside model and request
  std::string slots_choice = {};  // the reason for num_slots; human-readable
  std::vector<ContextSlots> contexts = {};  // the slots at other contexts; empty: it has no limit
  std::string plan = {};      // how steps are run; human-readable; bits do not depend on it
  std::string products = {};  // the libraries for matrix products; human-readable
  std::shared_ptr<const ExpertLoad> expert_load = {};  // null: not counted

  StateSize state_size() const {
    return state.fixed > 0 ? state : StateSize{.fixed = bytes_per_slot};
  }
};

// A token that was fed before, for penalties: whether it is in the prompt, and how often it was
// generated.
struct TokenCount {
  int32_t token = 0;
  bool in_prompt = false;
  int32_t output_count = 0;
};

// How a slot samples. Set when the slot is given to a sequence, kept until the slot is zeroed.
struct SlotSampler {
  SamplingParams params;      // validated
  uint32_t sample_index = 0;  // second word of the Philox counter: index among num_samples
  std::vector<int32_t>
      stop_ids;  // sampling one of these ends the row; includes the eos id if it ends generation
  bool want_logprobs = false;  // fill Record::logprob
  int num_top_logprobs = 0;    // fill Record::top with this many; needs want_logprobs
  // The tokens behind a state from WriteSlot, one entry per token id. Empty: none, or no penalties.
  std::vector<TokenCount> history;
};

// Asks for the raw head outputs that follow one fed token.
struct OutputRequest {
  int token_index = 0;  // index into RunRow::tokens
  float* destination =
      nullptr;  // [config.output_size()], host memory, written before the run is complete
};

inline size_t MaskWords(int vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

// Which tokens a row may draw.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // [MaskWords(vocab_size)], bit i of word j: token 32 j + i may be drawn. Empty: it is not known
  // yet, or no token may be drawn. Stays valid until the run is complete. Thread: any.
  virtual std::span<const uint32_t> Bits() const = 0;
};

// One row of a run. All spans are borrowed and must live until the run is complete.
struct RunRow {
  Slot slot = kGuardSlot;
  int64_t position = 0;  // tokens fed to this slot before this run, bos counted
  std::span<const int32_t>
      tokens;  // to feed in the first step; each in [0, vocab_size). At least 1, unless the
               // last row of the slot was one whose mask had no bits
  // The last `drafts` of `tokens` are guesses of what this row will draw. The row draws after the
  // token before them, and after each draft that equals the draw before it. The draws are those of
  // a row without drafts, and so is the state that the slot holds then: of the tokens before the
  // drafts and the drafts that were right. REQUIRES: within limits(), `sample`, Run::num_steps is
  // 1, max_samples > drafts, no targets and no outputs.
  int drafts = 0;
  // Guess so many tokens that follow the last draw, by the model's own head for that; they may be
  // the drafts of the slot's next row. They change nothing else. REQUIRES: at most
  // limits().drafts.guesses, in one row of the run; `sample`, and Run::num_steps is 1.
  int guesses = 0;
  bool sample = false;  // draw a token after the last of `tokens`, feed it, draw again, ...
  // Asked for after the products and before the draw. Where it has no bits, the row gets a record
  // without a token; its next row may have no `tokens`, and draws from the outputs that are there.
  // Null: every token may be drawn. REQUIRES: max_samples is 1, the head draws tokens, and without
  // BackendLimits::late_masks that it is known whether it has bits.
  const TokenMask* mask = nullptr;
  // [drafts] or empty: the masks of the draws after the drafts, likewise.
  std::span<const TokenMask* const> draft_masks;
  int max_samples = 0;  // ... at most this often (and at most Run::num_steps); >= 1 if `sample`
  bool count_as_output =
      false;  // `tokens` were sampled by this slot before: they count for penalties as output
  std::span<const int32_t>
      targets;  // to score: targets[i] with the outputs after tokens[i]; empty, or tokens.size()
  std::span<const OutputRequest> outputs;
};

struct Run {
  std::vector<RunRow> rows;  // distinct slots; row order never changes any row's bits
  int num_steps = 1;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // nats, of the model's own distribution
};

// One sampled token, or one scored target.
struct Record {
  int row = 0;           // index into Run::rows
  int64_t position = 0;  // tokens fed when the token was drawn or scored, bos counted
  int32_t token = 0;
  bool late = false;        // RunRow::mask had no bits: nothing was drawn
  bool stopped = false;     // the token is one of the slot's stop_ids; the row ended
  bool non_finite = false;  // the outputs hold a NaN or infinity: no token was drawn or scored;
                            // the row ended
  float logprob = 0;        // nats; NaN where not asked for
  std::vector<TokenLogprob> top;  // likeliest first; empty where not asked for
  std::vector<int32_t> guesses;   // of the row's last record, unless the row has ended
};

// Thread: called by one thread (the engine's loop). After a device error every call returns that
// error: the backend is poisoned and the process should be restarted. Operations take effect in the
// order of the calls.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendLimits& limits() const = 0;

  // State := 0, or the initial state of the model; penalty counts := 0; sampler := default. The
  // engine calls this when it assigns a slot and when it frees a slot.
  virtual absl::Status ZeroSlots(std::span<const Slot> slots) = 0;
  // Sets how `slot` samples. Penalty counts stay. A slot that has fed nothing and had no other
  // sampler since it was zeroed takes sampler.history as its counts. REQUIRES: for any other slot,
  // sampler.history is empty.
  virtual absl::Status SetSampler(Slot slot, const SlotSampler& sampler) = 0;
  // Fork: `to` gets the state and the penalty counts of `from`, not its sampler.
  virtual absl::Status CopySlot(Slot from, Slot to) = 0;
  // The floats that ReadSlot reads: the state as far as the sequence has filled it.
  virtual size_t StateFloats(Slot /*slot*/) const {
    return limits().bytes_per_slot / sizeof(float);
  }
  // Snapshot and restore of a state. Layout: model/state_parts.h, kernels/state_layout.h. Both wait
  // for submitted runs. ReadPart reads the part of the state that begins at float `from`; it ends
  // within StateFloats(slot). The concatenated `parts` are a whole state of any slot.
  virtual absl::Status ReadPart(Slot slot, size_t from, std::span<float> out) = 0;
  virtual absl::Status WriteParts(Slot slot, std::span<const std::span<const float>> parts) = 0;
  // A whole state: `out` is [StateFloats(slot)].
  absl::Status ReadSlot(Slot slot, std::span<float> out) { return ReadPart(slot, 0, out); }
  absl::Status WriteSlot(Slot slot, std::span<const float> in) {
    return WriteParts(slot, {&in, 1});
  }

  // Starts a run. At most one run is outstanding. A row whose sampled token is a stop id, or that
  // reached max_samples, takes no further step. The last sampled token of a row is reported but not
  // fed. REQUIRES: within limits(), slots distinct and not the guard, previous run complete.
  virtual absl::Status Submit(const Run& run) = 0;
  // Appends what the outstanding run has produced since the last Poll, in step order and within a
  // step in row order. Returns true once the run is complete (or none is outstanding). Never blocks
  // for long.
  virtual absl::StatusOr<bool> Poll(std::vector<Record>* records) = 0;
};

}  // namespace rivulet
