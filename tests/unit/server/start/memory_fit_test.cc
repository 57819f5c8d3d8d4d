// SPDX-License-Identifier: Apache-2.0
// What a server takes by default of a machine with 8 GiB, for the hybrids of deploy/BENCHMARKS.md:
// the code of its start, with a memory of the test's.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/block_settings.h"
#include "model/cpu/memory_plan.h"
#include "server/engine/loop/host_memory.h"
#include "server/start/start_files.h"
#include "server/start/state_setup.h"

namespace rivulet {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
// Of the system and of the process itself.
constexpr int64_t kTaken = int64_t{300} << 20;

struct Shape {
  const char* name;
  const char* config;
  int64_t weight_bytes;  // in 16 bits
};

std::vector<Shape> Shapes() {
  return {{"Qwen3.5-0.8B",
           R"({"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024,
             "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
             "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
             "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
             "intermediate_size": 3584, "rms_norm_eps": 1e-06, "hidden_act": "silu",
             "max_position_embeddings": 262144, "tie_word_embeddings": true,
             "full_attention_interval": 4, "rope_parameters": {"rope_type": "default",
             "rope_theta": 10000000.0, "partial_rotary_factor": 0.25}})",
           1504825272},
          {"Granite-4.0-H-350M",
           R"({"model_type": "granitemoehybrid", "vocab_size": 100352,
             "hidden_size": 768, "num_hidden_layers": 32, "num_attention_heads": 12,
             "num_key_value_heads": 4, "mamba_n_heads": 48, "mamba_d_head": 32,
             "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
             "shared_intermediate_size": 2048, "num_local_experts": 0,
             "position_embedding_type": "nope", "attention_multiplier": 0.015625,
             "embedding_multiplier": 12, "residual_multiplier": 0.246, "logits_scaling": 3,
             "rms_norm_eps": 1e-05, "max_position_embeddings": 32768, "tie_word_embeddings": true,
             "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
             "mamba", "mamba", "attention", "mamba", "mamba", "attention", "mamba", "mamba",
             "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
             "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"]})",
           680707648}};
}

TEST(MemoryFitTest, TheDefaultsStartOn8GibWithBothHybridsOfTheBenchmarks) {
  for (const Shape& shape : Shapes()) {
    const auto json = ParseSettings(shape.config);
    ASSERT_TRUE(json.ok()) << json.status();
    const auto config = ParseBlockConfig(*json);
    ASSERT_TRUE(config.ok()) << config.status();
    const ServerConfig defaults;
    const auto options = CpuOptionsOf(defaults, "any", /*reserved_bytes=*/0);
    ASSERT_TRUE(options.ok()) << options.status();
    BackendLimits limits;
    limits.weight_bytes = size_t(shape.weight_bytes);
    const HostMemory memory = {8 * kGib, 8 * kGib - shape.weight_bytes - kTaken, "the test"};
    const absl::Status chosen =
        PlanCpuMemory(*options, config->WithCache(options->cache), memory, &limits);
    ASSERT_TRUE(chosen.ok()) << chosen;
    SCOPED_TRACE(shape.name);
    EXPECT_GE(limits.num_slots, 16);
    EXPECT_GE(limits.context, 2048);
    EXPECT_LE(limits.context, 8192);
    const auto slot = int64_t(limits.bytes_per_slot);
    EXPECT_EQ(slot, int64_t(config->state().size().At(limits.context)));
    // 16 slots, twice as many replies that gave up theirs, and one kept state: all of them full.
    EXPECT_LE(shape.weight_bytes + kTaken + (3 * 16 + 1) * slot, memory.total);
    // Half of what weights leave is for what is not in slots: kept states and cached prompts.
    const int64_t kept = int64_t{defaults.session_state_mib} << 20;
    EXPECT_LE(shape.weight_bytes + kTaken + (limits.num_slots + 1) * slot + kept, memory.total);
    // What four rows with drafts take, is not in slots either.
    EXPECT_GE(limits.drafts.bytes, 4 * limits.state.fixed);
    EXPECT_LE(limits.drafts.bytes, 8 * limits.state.fixed);
    EXPECT_TRUE(CheckHostMemory(defaults, limits).ok());
    EXPECT_TRUE(CheckKeptMemory(defaults, limits).ok());
    EXPECT_GE(StateMemoryOf(0, limits).begun, 2 * limits.num_slots);
  }
}

TEST(MemoryFitTest, AContextByNumberOfSlotsLeavesThem) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(shape.name);
    const auto config = ParseBlockConfig(*ParseSettings(shape.config));
    const HostMemory memory = {8 * kGib, 8 * kGib - shape.weight_bytes - kTaken, "the test"};
    int64_t longer = int64_t{1} << 24;
    for (const int slots : {2, 4, 16}) {
      ServerConfig server;
      server.max_context.slots = slots;
      server.kv_cache = "f16";
      const auto options = CpuOptionsOf(server, "any", /*reserved_bytes=*/0);
      BackendLimits limits;
      limits.weight_bytes = size_t(shape.weight_bytes);
      const absl::Status chosen =
          PlanCpuMemory(*options, config->WithCache(options->cache), memory, &limits);
      ASSERT_TRUE(chosen.ok()) << chosen;
      EXPECT_GE(limits.num_slots, slots);
      EXPECT_GT(limits.context, 8192) << "more than the default";
      EXPECT_LE(limits.context, std::min(longer, config->trained_positions));
      longer = limits.context;
      EXPECT_EQ(limits.bytes_per_slot, limits.state.At(limits.context));
      EXPECT_EQ(limits.contexts.front().context, 8192);
    }
  }
}

}  // namespace
}  // namespace rivulet
