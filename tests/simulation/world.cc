// SPDX-License-Identifier: Apache-2.0
// The engine of a schedule: small limits, so that all of them are met.
#include <utility>

#include "tests/simulation/simulation.h"

namespace rivulet {

void Simulation::DrawWorld() {
  const bool with_bos = choices_.Below(3) > 0;
  const bool text = choices_.OneIn(3);
  if (text) letters_ = 5;  // few, so that stop strings are met
  world_.config = FakeConfig(letters_ + (with_bos ? 3 : 2), with_bos);
  if (choices_.OneIn(3)) world_.config.eos_token_id = letters_;
  if (choices_.OneIn(4)) {
    world_.config.position.type = PositionType::kLearned;
    world_.config.position.max_length = choices_.Between(20, 60);
  }
  if (text) world_.tokenizer = *Tokenizer::CreateChar("abcde");
  BackendLimits& limits = world_.fake.limits;
  limits.num_slots = choices_.Between(1, 5);
  limits.max_rows = choices_.Between(1, limits.num_slots);
  limits.max_tokens = choices_.Between(4, 40);
  limits.max_steps = choices_.Between(1, 5);
  limits.preferred_steps = choices_.Between(1, limits.max_steps);
  limits.bytes_per_slot = world_.config.state_layout().bytes_per_slot();
  world_.fake.polls_per_run = choices_.Between(1, 3);
  if (choices_.OneIn(6)) world_.fake.fail_at_call = choices_.Below(300);
  if (choices_.OneIn(8)) world_.fake.non_finite_draw_position = choices_.Between(3, 20);
  if (choices_.OneIn(8)) world_.fake.nan_score_position = choices_.Between(1, 12);
  if (choices_.OneIn(8)) world_.fake.nan_output_position = choices_.Between(1, 12);
}

namespace {

void DrawPreemption(const BackendLimits& limits, Choices* choices, EngineOptions* options) {
  options->preempt_after_runs = choices->OneIn(4) ? 1 << 20 : choices->Between(1, 8);
  if (choices->OneIn(4)) options->max_tenant_slots = choices->Between(1, limits.num_slots);
  // Of the memory: less than a server accepts, the least, room for whatever three tenants do.
  const int kind = choices->Below(5);
  const int samples = kind == 0   ? choices->Between(1, 2 * limits.num_slots)
                      : kind == 1 ? 2 * limits.num_slots
                                  : 6 * limits.num_slots;
  if (kind < 4) {
    options->max_parked_bytes = samples * static_cast<int64_t>(limits.bytes_per_slot);
  }
}

}  // namespace

void Simulation::DrawLimits() {
  EngineOptions& options = world_.options;
  options.max_queue = choices_.Between(0, 8);
  options.max_queue_tokens = choices_.Between(40, 400);
  options.default_max_tokens = 15;
  options.prefill_tokens_busy = choices_.Between(1, 8);
  options.prefill_tokens_idle = choices_.Between(4, 24);
  if (!choices_.OneIn(3)) options.max_tenant_queue = choices_.Between(1, 8);
  options.max_pending_bytes = 4 * choices_.Between(2, 10);
  options.reader_timeout = choices_.OneIn(2)
                               ? absl::InfiniteDuration()
                               : absl::Seconds(choices_.Between(1, choices_.OneIn(2) ? 5 : 100));
  DrawPreemption(world_.fake.limits, &choices_, &options);
  SessionLimits& sessions = options.sessions;
  sessions.max_open_sessions = choices_.Between(2, 12);
  if (!choices_.OneIn(3)) sessions.max_tenant_sessions = choices_.Between(1, 8);
  const int64_t state = static_cast<int64_t>(world_.fake.limits.bytes_per_slot);
  options.states.max_memory_bytes = choices_.Below(choices_.OneIn(2) ? 3 : 12) * state;
  options.states.max_writing_bytes = choices_.Below(4) * state;
  options.states.max_disk_bytes = choices_.Below(choices_.OneIn(2) ? 10 : 100) * state;
  options.prefix_cache.max_bytes = choices_.Below(12) * 2 * state;
  options.prefix_cache.least_gain = choices_.Between(1, 6);
  sessions.checkpoint_tokens = choices_.Between(2, 40);
  sessions.max_tokens = choices_.Between(20, 120);
  sessions.max_waiting = choices_.Between(0, 3);
  sessions.max_marks = choices_.Between(1, 3);
  sessions.max_forks = 4;
  sessions.default_idle = absl::Seconds(choices_.Between(2, 60));
}

void Simulation::DrawDisk() {
  if (choices_.OneIn(4)) return;
  static constexpr int kOneIn[] = {0, 0, 0, 20, 4, 1};
  FaultyDisk::Faults faults;
  faults.writes_one_in = kOneIn[choices_.Below(6)];
  faults.reads_one_in = kOneIn[choices_.Below(6)];
  if (choices_.OneIn(6)) faults.max_files = choices_.Below(6);
  slow_disk_ = choices_.OneIn(4);
  disk_.emplace(&choices_, faults);
}

std::vector<WarmState> Simulation::DrawWarm() {
  std::vector<WarmState> all;
  for (std::vector<int32_t>& tokens : common_) {
    for (int n = choices_.Between(3, 20); n > 0; --n) tokens.push_back(choices_.Below(letters_));
    if (!choices_.OneIn(4)) continue;
    WarmState& warm = all.emplace_back();
    warm.tokens = tokens;
    warm.fed = choices_.Between(1, static_cast<int>(tokens.size())) + truth_.bos();
    SessionState state;
    for (const int32_t token : tokens) state.Append(token, false);
    warm.state = FakeState(truth_.Fed(state, warm.fed), world_.fake.limits.bytes_per_slot);
    warm_bytes_ += static_cast<int64_t>(world_.fake.limits.bytes_per_slot);
    shared_.OfferToAll({tokens.begin(), tokens.begin() + (warm.fed - truth_.bos())});
  }
  return all;
}

Simulation::Simulation(Choices choices, const SimulationOptions& options)
    : choices_(std::move(choices)), options_(options) {
  DrawWorld();
  DrawLimits();
  DrawDisk();
  std::vector<WarmState> warm = DrawWarm();
  engine_ = CreateSteppedEngine(
      world_.config, world_.tokenizer ? &*world_.tokenizer : nullptr,
      std::make_unique<WatchedBackend>(world_.config, world_.fake, probe_, options_.mutant,
                                       [this] { OnBackendCall(); }),
      world_.options, [this] { return now_; }, disk_ ? disk_->Tier() : DiskTier(), std::move(warm));
}

Simulation::~Simulation() {
  if (engine_ != nullptr) Stop();  // its requests tell us of their ends
}

}  // namespace rivulet
