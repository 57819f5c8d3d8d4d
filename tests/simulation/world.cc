// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/world.h"

#include "absl/time/time.h"
#include "tests/simulation/truth.h"
#include "tests/support/fake_constraints.h"

namespace rivulet {
namespace {

// More tokens than any sequence of a schedule has. What clients share is less than any context.
constexpr int64_t kLongest = 200;

void DrawBackend(Choices* choices, World* world) {
  const bool with_bos = choices->Below(3) > 0;
  const bool text = choices->OneIn(3);
  if (text) world->letters = 5;  // few, so that stop strings are met
  world->config = FakeConfig(world->letters + (with_bos ? 3 : 2), with_bos);
  if (choices->OneIn(3)) world->config.eos_token_id = world->letters;
  if (choices->OneIn(4)) {
    world->config.max_positions = choices->Between(20, 60);
  }
  BackendLimits& limits = world->fake.limits;
  if (text) {
    world->tokenizer = *CreateCharTokenizer("abcde");
    const int most_looks = choices->Below(3);
    world->options.constraints = std::make_shared<FakeConstraints>(
        world->tokenizer.get(), world->config.vocab_size,
        [choices, most_looks] { return choices->Between(0, most_looks); });
    limits.late_masks = choices->OneIn(2);
  }
  limits.num_slots = choices->Between(1, 5);
  limits.max_rows = choices->Between(1, limits.num_slots);
  limits.max_tokens = choices->Between(4, 40);
  limits.max_steps = choices->Between(1, 5);
  limits.preferred_steps = choices->Between(1, limits.max_steps);
  if (choices->OneIn(2)) {
    limits.drafts.most = choices->Between(1, 5);
    limits.drafts.rows = choices->Between(1, limits.num_slots);
    limits.drafts.guesses = choices->Between(0, limits.drafts.most);
  }
  limits.bytes_per_slot = world->config.state_layout().bytes_per_slot();
  if (choices->OneIn(2)) {
    const int block = choices->Between(1, 5);
    limits.state = {.fixed = limits.bytes_per_slot,
                    .per_block = static_cast<size_t>(block) * sizeof(float),
                    .block_tokens = block,
                    .segment_tokens = block * choices->Between(1, 4)};
    if (choices->OneIn(2)) {
      limits.context = world->config.context = choices->Between(25, 60);
    }
    limits.bytes_per_slot = limits.state.At(limits.context > 0 ? limits.context : kLongest);
  }
  world->fake.polls_per_run = choices->Between(1, 3);
  if (choices->OneIn(6)) world->fake.fail_at_call = choices->Below(300);
  if (choices->OneIn(8)) world->fake.non_finite_draw_position = choices->Between(3, 20);
  if (choices->OneIn(8)) world->fake.nan_score_position = choices->Between(1, 12);
  if (choices->OneIn(8)) world->fake.nan_output_position = choices->Between(1, 12);
}

void DrawPreemption(const BackendLimits& limits, Choices* choices, EngineOptions* options) {
  options->preempt_after_runs = choices->OneIn(4) ? 1 << 20 : choices->Between(1, 8);
  if (choices->OneIn(4)) options->max_tenant_slots = choices->Between(1, limits.num_slots);
  // Of the memory: less than a server accepts, the least, room for whatever three tenants do.
  const int kind = choices->Below(5);
  const int samples = kind == 0   ? choices->Between(1, 2 * limits.num_slots)
                      : kind == 1 ? 2 * limits.num_slots
                                  : 6 * limits.num_slots;
  if (kind < 4) {
    options->max_host_bytes = samples * static_cast<int64_t>(limits.bytes_per_slot);
  }
}

void DrawLimits(Choices* choices, World* world) {
  EngineOptions& options = world->options;
  options.max_queue = choices->Between(0, 8);
  options.max_queue_tokens = choices->Between(40, 400);
  options.default_max_tokens = 15;
  options.prefill_tokens_busy = choices->Between(1, 8);
  options.prefill_tokens_idle = choices->Between(4, 24);
  if (!choices->OneIn(3)) options.max_tenant_queue = choices->Between(1, 8);
  options.max_pending_bytes = 4 * choices->Between(2, 10);
  options.reader_timeout = choices->OneIn(2)
                               ? absl::InfiniteDuration()
                               : absl::Seconds(choices->Between(1, choices->OneIn(2) ? 5 : 100));
  DrawPreemption(world->fake.limits, choices, &options);
  SessionLimits& sessions = options.sessions;
  sessions.max_open_sessions = choices->Between(2, 12);
  if (!choices->OneIn(3)) sessions.max_tenant_sessions = choices->Between(1, 8);
  const int64_t state = world->state_bytes();
  options.states.max_memory_bytes = choices->Below(choices->OneIn(2) ? 3 : 12) * state;
  options.states.max_writing_bytes = choices->Below(4) * state;
  options.states.max_disk_bytes = choices->Below(choices->OneIn(2) ? 10 : 100) * state;
  options.prefix_cache.max_bytes = choices->Below(12) * 2 * state;
  options.prefix_cache.least_gain = choices->Between(1, 6);
  sessions.checkpoint_tokens = choices->Between(2, 40);
  sessions.max_tokens = choices->Between(20, 120);
  sessions.max_waiting = choices->Between(0, 3);
  sessions.max_marks = choices->Between(1, 3);
  sessions.max_forks = 4;
  sessions.default_idle = absl::Seconds(choices->Between(2, 60));
}

std::optional<FaultyDisk::Faults> DrawDisk(Choices* choices) {
  if (choices->OneIn(4)) return std::nullopt;
  static constexpr int kOneIn[] = {0, 0, 0, 20, 4, 1};
  FaultyDisk::Faults faults;
  faults.writes_one_in = kOneIn[choices->Below(6)];
  faults.reads_one_in = kOneIn[choices->Below(6)];
  if (choices->OneIn(6)) faults.max_files = choices->Below(6);
  faults.slow = choices->OneIn(4);
  return faults;
}

void DrawWarm(Choices* choices, World* world) {
  const Truth truth(*world);
  for (std::vector<int32_t>& tokens : world->common) {
    for (int n = choices->Between(3, 20); n > 0; --n)
      tokens.push_back(choices->Below(world->letters));
    if (!choices->OneIn(4)) continue;
    WarmState& warm = world->warm.emplace_back();
    warm.tokens = tokens;
    warm.fed = choices->Between(1, static_cast<int>(tokens.size())) + world->bos();
    SessionState state;
    for (const int32_t token : tokens) state.Append(token, false);
    warm.state = FakeState(truth.Fed(state, warm.fed), world->state_size());
  }
}

}  // namespace

int64_t World::warm_bytes() const {
  int64_t sum = 0;
  for (const WarmState& state : warm)
    sum += static_cast<int64_t>(state.state.size() * sizeof(float));
  return sum;
}

World DrawWorld(Choices* choices) {
  World world;
  DrawBackend(choices, &world);
  DrawLimits(choices, &world);
  world.disk = DrawDisk(choices);
  DrawWarm(choices, &world);
  return world;
}

}  // namespace rivulet
