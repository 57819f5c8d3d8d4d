// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_backend.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Adds products that do not depend on each other: the simulations hash all values for each token,
// and a chain of Mix() took most of their time. CountsHash() does the same.
uint64_t ValuesHash(std::span<const uint16_t> values) {
  uint64_t all = values.size();
  for (size_t i = 0; i < values.size(); ++i) all += (uint64_t{values[i]} + 1) * (2 * i + 1);
  return all;
}

}  // namespace

void FakeHistory::Feed(int32_t token, bool as_output) {
  hash = Mix(hash ^ (static_cast<uint64_t>(token) << 1));
  if (grows) kept.push_back(static_cast<uint16_t>(hash));
  ring[static_cast<size_t>(count) % ring.size()] = static_cast<uint16_t>(hash >> 16);
  ++count;
  Count({token, !as_output, as_output ? 1 : 0});
}

void FakeHistory::Count(const TokenCount& seen) {
  auto& [in_prompt, output_count] = counts[seen.token];
  in_prompt |= seen.in_prompt;
  output_count += seen.output_count;
}

uint64_t FakeHistory::CountsHash() const {
  uint64_t all = 0;
  for (const auto& [token, seen] : counts) {
    const uint64_t times = static_cast<uint64_t>(seen.second) << 1 | (seen.first ? 1 : 0);
    all += Mix(static_cast<uint64_t>(token) << 32 ^ times);
  }
  return all;
}

float FakeHistory::Logprob(int32_t token) const {
  return -static_cast<float>(Mix(hash + static_cast<uint64_t>(token)) % 1024) / 1024;
}

int32_t FakeDraw(const ModelConfig& config, const FakeScript& script, const FakeHistory& history,
                 const SlotSampler& sampler) {
  if (script) return script(sampler.sample_index, history.count);
  uint64_t hash = Mix(history.hash ^ Mix(sampler.params.seed));
  hash = Mix(hash ^ ValuesHash(history.kept));
  hash = Mix(hash ^ ValuesHash(history.ring));
  if (sampler.params.has_penalties()) hash = Mix(hash ^ history.CountsHash());
  hash = Mix(hash ^
             Mix((uint64_t{sampler.sample_index} << 40) ^ static_cast<uint64_t>(history.count)));
  const uint64_t choices = static_cast<uint64_t>(config.num_output_tokens());
  const auto token = static_cast<int32_t>(hash % choices);
  const bool is_bos = config.bos_token_id && token == *config.bos_token_id;
  return is_bos ? static_cast<int32_t>((static_cast<uint64_t>(token) + 1) % choices) : token;
}

int32_t FakeMasked(int32_t drawn, int vocab_size, std::span<const uint32_t> mask) {
  const auto allowed = [mask](int32_t token) {
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  };
  for (int i = 0; i < vocab_size; ++i) {
    const int32_t token = (drawn + i) % vocab_size;
    if (allowed(token)) return token;
  }
  return drawn;
}

std::vector<float> FakeState(const FakeHistory& history, const StateSize& size) {
  std::vector<float> values(size.At(history.count) / sizeof(float));
  for (size_t i = 0; i < 4; ++i) {  // 16 bits a float: finite and exact
    values[i] = static_cast<float>(history.hash >> (16 * i) & 0xffff);
    values[4 + i] = static_cast<float>(static_cast<uint64_t>(history.count) >> (16 * i) & 0xffff);
  }
  std::copy(history.ring.begin(), history.ring.end(), values.begin() + 8);
  std::copy(history.kept.begin(), history.kept.end(),
            values.begin() + static_cast<std::ptrdiff_t>(size.fixed / sizeof(float)));
  return values;
}

std::vector<int32_t> FakeSolo(const ModelConfig& config, const FakeScript& script,
                              const std::vector<int32_t>& feed, const SlotSampler& sampler,
                              int64_t max_new) {
  FakeHistory history;
  for (int32_t token : feed) history.Feed(token, false);
  std::vector<int32_t> drawn;
  while (static_cast<int64_t>(drawn.size()) < max_new) {
    if (!drawn.empty()) history.Feed(drawn.back(), true);
    drawn.push_back(FakeDraw(config, script, history, sampler));
    const auto& stops = sampler.stop_ids;
    if (std::find(stops.begin(), stops.end(), drawn.back()) != stops.end()) break;
  }
  return drawn;
}

void FakeProbe::AllowRuns(int64_t runs) {
  std::lock_guard<std::mutex> lock(mutex_);
  permits_ = std::max<int64_t>(permits_, 0) + runs;
}

void FakeProbe::AllowAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  permits_ = -1;
}

bool FakeProbe::TakePermit() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (permits_ > 0)
    --permits_;
  else if (permits_ == 0)
    return false;
  return true;
}

int64_t FakeProbe::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

int64_t FakeProbe::zeroed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return zeroed_;
}

int64_t FakeProbe::copied() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return copied_;
}

int FakeProbe::dirty_slots() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(std::count(dirty_.begin(), dirty_.end(), true));
}

std::vector<FakeRun> FakeProbe::runs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return runs_;
}

int64_t FakeProbe::num_runs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_runs_;
}

std::vector<std::string> FakeProbe::violations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

FakeBackend::FakeBackend(const ModelConfig& config, const FakeBackendOptions& options,
                         std::shared_ptr<FakeProbe> probe)
    : config_(config),
      options_(options),
      probe_(std::move(probe)),
      slots_(static_cast<size_t>(options.limits.num_slots) + 1) {
  std::lock_guard<std::mutex> lock(probe_->mutex_);
  probe_->dirty_.assign(slots_.size(), false);
}

absl::Status FakeBackend::CountCall() {
  std::lock_guard<std::mutex> lock(probe_->mutex_);
  if (probe_->calls_++ == options_.fail_at_call && failed_.ok()) {
    failed_ = absl::InternalError("fake device error");
  }
  return failed_;
}

absl::Status FakeBackend::Violation(const std::string& what) {
  std::lock_guard<std::mutex> lock(probe_->mutex_);
  probe_->violations_.push_back(what);
  if (failed_.ok()) failed_ = absl::InternalError(what);
  return failed_;
}

absl::Status FakeBackend::CheckSlot(Slot slot) {
  if (slot > kGuardSlot && slot <= options_.limits.num_slots) return absl::OkStatus();
  return Violation(absl::StrCat("slot ", slot, " is the guard or does not exist"));
}

absl::Status FakeBackend::ZeroSlots(std::span<const Slot> slots) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  if (slots.empty()) return Violation("ZeroSlots without slots");
  for (Slot slot : slots) {
    if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
    state(slot) = SlotState();
    state(slot).history = {.grows = options_.limits.state.per_block > 0};
    state(slot).zeroed = true;
    std::lock_guard<std::mutex> lock(probe_->mutex_);
    ++probe_->zeroed_;
    probe_->dirty_[static_cast<size_t>(slot)] = false;
  }
  return absl::OkStatus();
}

absl::Status FakeBackend::SetSampler(Slot slot, const SlotSampler& sampler) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
  state(slot).sampler = sampler;
  state(slot).has_sampler = true;
  for (const TokenCount& seen : sampler.history) state(slot).history.Count(seen);
  return absl::OkStatus();
}

absl::Status FakeBackend::CopySlot(Slot from, Slot to) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  if (absl::Status status = CheckSlot(from); !status.ok()) return status;
  if (absl::Status status = CheckSlot(to); !status.ok()) return status;
  if (from == to) return Violation("CopySlot to itself");
  state(to).history = state(from).history;
  state(to).late = false;
  state(to).zeroed = state(from).zeroed;
  std::lock_guard<std::mutex> lock(probe_->mutex_);
  ++probe_->copied_;
  probe_->dirty_[static_cast<size_t>(to)] = true;
  return absl::OkStatus();
}

size_t FakeBackend::StateFloats(Slot slot) const {
  const int64_t count = slots_[static_cast<size_t>(slot)].history.count;
  return options_.limits.state_size().At(count) / sizeof(float);
}

absl::Status FakeBackend::ReadPart(Slot slot, size_t from, std::span<float> out) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
  const std::vector<float> values = FakeState(state(slot).history, options_.limits.state_size());
  if (from + out.size() > values.size()) return Violation("ReadPart: wrong size");
  std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(from), out.size(), out.begin());
  return absl::OkStatus();
}

absl::Status FakeBackend::WriteParts(Slot slot, std::span<const std::span<const float>> parts) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
  if (!state(slot).zeroed || state(slot).history.count != 0) {
    return Violation("WriteParts to a slot that is in use");
  }
  std::vector<float> in;
  for (const auto& part : parts) in.insert(in.end(), part.begin(), part.end());
  const StateSize size = options_.limits.state_size();
  const size_t fixed = size.fixed / sizeof(float);
  if (in.size() < fixed) return Violation("WriteParts: wrong size");
  FakeHistory& history = state(slot).history;
  history.hash = 0;
  for (size_t i = 0; i < 4; ++i) {
    history.hash |= static_cast<uint64_t>(in[i]) << (16 * i);
    history.count |= static_cast<int64_t>(in[4 + i]) << (16 * i);
  }
  for (size_t i = 0; i < history.ring.size(); ++i) {
    history.ring[i] = static_cast<uint16_t>(static_cast<uint64_t>(in[8 + i]));
  }
  const int64_t context = options_.limits.context;
  if (in.size() * sizeof(float) != size.At(history.count) ||
      (context > 0 && history.count > context)) {
    return Violation("WriteParts: wrong size");
  }
  for (size_t i = 0; history.grows && i < static_cast<size_t>(history.count); ++i) {
    history.kept.push_back(static_cast<uint16_t>(in[fixed + i]));
  }
  std::lock_guard<std::mutex> lock(probe_->mutex_);
  probe_->dirty_[static_cast<size_t>(slot)] = true;
  return absl::OkStatus();
}

absl::Status FakeBackend::CheckRow(const RunRow& row) {
  if (absl::Status status = CheckSlot(row.slot); !status.ok()) return status;
  const SlotState& slot = state(row.slot);
  auto fail = [&](const std::string& what) {
    return Violation(absl::StrCat("row of slot ", row.slot, ": ", what));
  };
  if (!slot.zeroed) return fail("the slot was never zeroed");
  if (row.position != slot.history.count) {
    return fail(absl::StrCat("position ", row.position, " after ", slot.history.count, " tokens"));
  }
  if (row.tokens.empty() && !slot.late) return fail("no tokens");
  if (row.mask != nullptr && (run_.num_steps > 1 || !row.sample))
    return fail("a mask of a long run");
  for (int32_t token : row.tokens) {
    if (token < 0 || token >= config_.vocab_size) return fail(absl::StrCat("token ", token));
  }
  const int64_t fed = row.position + static_cast<int64_t>(row.tokens.size()) +
                      (row.sample ? std::min(run_.num_steps, row.max_samples) - 1 : 0);
  if (config_.max_positions > 0 && fed > config_.max_positions) {
    return fail(absl::StrCat("feeds ", fed, " tokens, past max_length"));
  }
  const int64_t context = options_.limits.context;
  if (context > 0 && fed > context) {
    return fail(absl::StrCat("feeds ", fed, " tokens into a slot with room for ", context));
  }
  const BackendLimits& limits = options_.limits;
  const auto drafts = static_cast<size_t>(row.drafts);
  if (row.drafts < 0 || row.drafts > limits.drafts.most) return fail("number of drafts");
  if (drafts > 0 && (row.tokens.size() != 1 + drafts || !row.sample || run_.num_steps > 1 ||
                     row.max_samples <= row.drafts || !row.targets.empty() ||
                     !row.outputs.empty() || !slot.history.count)) {
    return fail("a row that has drafts");
  }
  if (row.guesses < 0 || row.guesses > limits.drafts.guesses ||
      (row.guesses > 0 && (!row.sample || run_.num_steps > 1))) {
    return fail("guesses");
  }
  if (!row.draft_masks.empty() && row.draft_masks.size() != drafts) return fail("draft masks");
  if (row.sample && (row.max_samples < 1 || !slot.has_sampler)) return fail("cannot sample");
  if (!row.targets.empty() && row.targets.size() != row.tokens.size()) return fail("targets");
  for (int32_t target : row.targets) {
    if (target < 0 || target >= config_.num_output_tokens()) return fail("target out of range");
  }
  for (const OutputRequest& output : row.outputs) {
    if (output.token_index < 0 || output.token_index >= static_cast<int>(row.tokens.size())) {
      return fail("output of a token that is not fed");
    }
  }
  return absl::OkStatus();
}

absl::Status FakeBackend::Submit(const Run& run) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  const BackendLimits& limits = options_.limits;
  if (outstanding_) return Violation("Submit while a run is outstanding");
  if (run.rows.empty() || run.rows.size() > static_cast<size_t>(limits.max_rows)) {
    return Violation(absl::StrCat(run.rows.size(), " rows"));
  }
  if (run.num_steps < 1 || run.num_steps > limits.max_steps) {
    return Violation(absl::StrCat(run.num_steps, " steps"));
  }
  run_ = run;
  FakeRun log;
  log.num_steps = run.num_steps;
  std::set<Slot> seen;
  size_t tokens = 0;
  int speculating = 0;
  for (const RunRow& row : run.rows) {
    if (absl::Status status = CheckRow(row); !status.ok()) return status;
    if (row.drafts > 0 && ++speculating > limits.drafts.rows) {
      return Violation("too many rows have drafts");
    }
    if (!seen.insert(row.slot).second) return Violation("a slot has two rows");
    tokens += row.tokens.size();
    log.rows.push_back({row.slot, static_cast<int>(row.tokens.size()), row.position, row.sample,
                        !row.targets.empty()});
  }
  if (tokens > static_cast<size_t>(limits.max_tokens)) {
    return Violation(absl::StrCat(tokens, " tokens in a run"));
  }
  records_.clear();
  outputs_.clear();
  left_.assign(run.rows.size(), 0);
  last_.assign(run.rows.size(), 0);
  for (size_t i = 0; i < run.rows.size(); ++i) FirstStep(static_cast<int>(i), run.rows[i]);
  for (int step = 1; step < run.num_steps; ++step) {
    for (size_t i = 0; i < run.rows.size(); ++i) {
      if (left_[i] == 0) continue;
      state(run.rows[i].slot).history.Feed(last_[i], true);
      Draw(static_cast<int>(i), run.rows[i].mask);
    }
  }
  outstanding_ = true;
  has_permit_ = false;
  next_record_ = 0;
  const auto polls = static_cast<size_t>(std::max(1, options_.polls_per_run));
  records_per_poll_ = records_.size() / polls + 1;
  std::lock_guard<std::mutex> lock(probe_->mutex_);
  ++probe_->num_runs_;
  for (const RunRow& row : run.rows) probe_->dirty_[static_cast<size_t>(row.slot)] = true;
  if (probe_->runs_.size() < 10000) probe_->runs_.push_back(std::move(log));
  return absl::OkStatus();
}

void FakeBackend::FirstStep(int index, const RunRow& row) {
  FakeHistory& history = state(row.slot).history;
  if (!row.tokens.empty()) state(row.slot).late = false;
  for (size_t t = 0; t + static_cast<size_t>(row.drafts) < row.tokens.size(); ++t) {
    history.Feed(row.tokens[t], row.count_as_output);
    for (const OutputRequest& output : row.outputs) {
      if (output.token_index != static_cast<int>(t)) continue;
      for (int i = 0; i < config_.output_size(); ++i) {
        const bool bad = history.count == options_.nan_output_position && i > 0;
        outputs_.emplace_back(output.destination + i,
                              bad ? std::numeric_limits<float>::infinity() : history.Logprob(i));
      }
    }
    if (row.targets.empty()) continue;
    Record record;
    record.row = index;
    record.position = history.count;
    record.token = row.targets[t];
    record.logprob = history.count == options_.nan_score_position
                         ? std::numeric_limits<float>::quiet_NaN()
                         : history.Logprob(record.token);
    records_.push_back(std::move(record));
  }
  if (!row.sample) return;
  const bool once = row.mask != nullptr || row.drafts > 0;
  left_[static_cast<size_t>(index)] = once ? 1 : row.max_samples;
  Draw(index, row.mask);
  DrawDrafts(index, row);
  Guess(row);
}

// The draws that follow, a third of them wrong.
void FakeBackend::Guess(const RunRow& row) {
  Record& last = records_.back();
  if (last.late || last.stopped || last.non_finite) return;
  FakeHistory history = state(row.slot).history;
  int32_t token = last.token;
  for (int i = 0; i < row.guesses; ++i) {
    history.Feed(token, true);
    token = FakeDraw(config_, options_.script, history, state(row.slot).sampler);
    if (history.hash % 3 == 0) token = (token + 1) % config_.num_output_tokens();
    last.guesses.push_back(token);
  }
}

void FakeBackend::DrawDrafts(int index, const RunRow& row) {
  using Fault = FakeBackendOptions::DraftFault;
  FakeHistory& history = state(row.slot).history;
  const auto drafts = static_cast<size_t>(row.drafts);
  for (size_t i = 0; i < drafts; ++i) {
    const Record& drawn = records_.back();
    const int32_t draft = row.tokens[1 + i];
    if (drawn.late || drawn.stopped || drawn.non_finite) return;
    if (drawn.token != draft) {
      if (options_.draft_fault == Fault::kCountsIt) history.Count({draft, false, 1});
      if (options_.draft_fault == Fault::kKeepsState) history.hash = Mix(history.hash);
      if (options_.draft_fault == Fault::kLosesDraw && i > 0) records_.pop_back();
      if (options_.draft_fault != Fault::kAcceptsIt) return;
    }
    history.Feed(draft, true);
    left_[static_cast<size_t>(index)] = 1;
    Draw(index, row.draft_masks.empty() ? nullptr : row.draft_masks[i]);
  }
}

void FakeBackend::Draw(int index, const TokenMask* mask) {
  const auto i = static_cast<size_t>(index);
  SlotState& slot = state(run_.rows[i].slot);
  Record record;
  record.row = index;
  record.position = slot.history.count;
  record.token = FakeDraw(config_, options_.script, slot.history, slot.sampler);
  if (mask != nullptr) {
    const std::span<const uint32_t> bits = mask->Bits();
    record.late = slot.late = bits.empty();
    if (record.late) {
      left_[i] = 0;
      return records_.push_back(std::move(record));
    }
    record.token = FakeMasked(record.token, config_.vocab_size, bits);
  }
  const auto& stops = slot.sampler.stop_ids;
  record.stopped = std::find(stops.begin(), stops.end(), record.token) != stops.end();
  record.logprob = slot.sampler.want_logprobs ? slot.history.Logprob(record.token)
                                              : std::numeric_limits<float>::quiet_NaN();
  for (int32_t n = 0; n < slot.sampler.num_top_logprobs; ++n) {
    record.top.push_back({n, slot.history.Logprob(n)});
  }
  record.non_finite = record.position == options_.non_finite_draw_position;
  last_[i] = record.token;
  left_[i] = record.stopped || record.non_finite ? 0 : left_[i] - 1;
  records_.push_back(std::move(record));
}

absl::StatusOr<bool> FakeBackend::Poll(std::vector<Record>* records) {
  if (absl::Status status = CountCall(); !status.ok()) return status;
  if (!outstanding_) return true;
  if (!has_permit_) has_permit_ = probe_->TakePermit();
  if (!has_permit_) return false;
  const size_t end = std::min(records_.size(), next_record_ + records_per_poll_);
  for (; next_record_ < end; ++next_record_) {
    records->push_back(std::move(records_[next_record_]));
  }
  if (next_record_ < records_.size()) return false;
  // What the rows borrow must live until here: look at it once more.
  for (const RunRow& row : run_.rows) {
    for (int32_t token : row.tokens) {
      if (token < 0 || token >= config_.vocab_size) return Violation("tokens died during the run");
    }
  }
  for (auto& [destination, value] : outputs_) *destination = value;
  outstanding_ = false;
  return true;
}

ModelConfig FakeConfig(int vocab_size, bool with_bos) {
  ModelConfig config;
  config.name = "fake";
  config.vocab_size = vocab_size;
  if (with_bos) config.bos_token_id = vocab_size - 1;
  config.hidden_size = 8;
  config.num_layers = config.num_heads = 1;
  config.key_dim = config.value_dim = 8;
  config.ffn_size = 8;
  return config;
}

}  // namespace rivulet
