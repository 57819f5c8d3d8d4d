// SPDX-License-Identifier: Apache-2.0
// The content of a model directory, from the headers of its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "server/config/server_config.h"

namespace rivulet {

struct ModelDescription {
  std::string name;
  std::string kind;        // "linear" or "softmax" (model/FORMAT.md), or the model_type, as "gla"
  std::string content;     // "tokens", "text", "image 28x28x1"
  std::string tokenizer;   // ModelText::tokenizer_kind; "": none
  int tokenizer_size = 0;  // its ids
  std::string dtypes;      // of its tensors, the type with most bytes first: "F16, F32"
  int64_t num_parameters = 0;
  // Without the experts that a token does not choose; and the bytes of matrices that a token reads,
  // alone in its batch.
  int64_t active_parameters = 0, token_weight_bytes = 0;
  // As the CPU backend keeps the weights; an estimate for kinds "linear" and "softmax".
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;  // of one sequence, with room for `context` tokens
  // Of state_bytes: the part that does not grow (recurrent states, windows of keys and values), and
  // the bytes that each token adds in layers that attend to all positions. context: the tokens that
  // a slot would have room for; 0: no limit.
  int64_t fixed_bytes = 0, token_bytes = 0, context = 0;
  int num_layers = 0, hidden_size = 0, vocab_size = 0;
  int num_heads = 0, key_dim = 0, value_dim = 0;  // the dimensions: of a head
  // Another choice of --weights, with its weight_bytes and slots.
  struct Choice {
    std::string weights;  // "int8"
    int64_t weight_bytes = 0;
    int slots = 0;
  };
  std::vector<Choice> choices;
  // The slots at other contexts, with the type of the KV cache; empty: a state does not grow.
  std::vector<ContextSlots> contexts;
  std::string kv_cache;
  int slots = 0;             // of the CPU backend here and now with `--slots auto`; 0: none fit
  std::string slots_choice;  // why this number
};

// Describes the first model of `server`, with its weights, max_context and kv_cache, without
// reading a weight. Errors: the errors of ParseModelPlace, CpuOptionsOf, Model::Open and
// ChooseCpuContext; DATA_LOSS
// (a tensor of the family is missing, misshapen or not expected). Thread: any.
absl::StatusOr<ModelDescription> DescribeModel(const ServerConfig& server);

}  // namespace rivulet
