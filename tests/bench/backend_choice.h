// SPDX-License-Identifier: Apache-2.0
// The subject of a benchmark: a backend, chosen on the command line, and models of known shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "model/backend.h"
#include "model/cpu/cpu_backend.h"
#include "model/cuda/cuda_backend.h"
#include "model/model.h"

namespace rivulet::bench {

struct Choice {
  bool cuda = false;                                      // --backend=cpu|cuda
  CudaPrecision precision = CudaPrecision::kDefault;      // --precision=default|float32, of CUDA
  CudaProductChoice products = CudaProductChoice::kAuto;  // --products=auto|own
  kernels::CacheType cache = kernels::CacheType::kF32;    // --kv-cache=f32|f16|bf16
  bool graphs = true;                                     // --graphs=on|off, of CUDA
  bool overlap = true;                                    // --overlap=on|off, of CUDA
  int many_rows = CudaBackendOptions().many_rows;         // --many-rows=N, of CUDA
  int device = 0;                                         // --device=N
  int max_drafts = 0;                                     // of the CPU; set by the program
  double copy_gb_per_s = 0;  // --copy-gb-per-s=X: the limit of memory, measured on the same device
  double matrix_tflop_per_s = 0;       // --matrix-tflop-per-s=X: the limit of products, measured
  std::string models;                  // --models=DIR: the bundled models
  std::optional<int64_t> max_context;  // positions that a slot has room for; nullopt: by memory
  std::string kept;  // --keep=DIR: models with random weights stay in that folder for the next run
};

// Removes our flags from the command line; ends the program if a flag is wrong. `own`: takes a flag
// of the program itself; returns whether the argument is such a flag.
Choice ParseChoice(int* argc, char** argv,
                   const std::function<bool(const char* argument)>& own = nullptr);

// Prints `what` and ends the program.
[[noreturn]] void Fail(const std::string& what, int code);
// The value that `argument` gives to `flag` ("--name="); null if it is another flag.
const char* FlagValue(const char* argument, const char* flag);

// `threads`: for the CPU only. Ends the program if the backend cannot be made; with exit code 77 if
// the backend is absent.
std::unique_ptr<Backend> NewBackend(const Choice& choice, std::shared_ptr<const Model> model,
                                    int num_slots, const WeightChoice& weights, int threads);

// "cifar-10" (16 layers, hidden 256, 3072 positions), "110m" (12 layers, hidden 768, 12 heads x
// 64), "rwkv7-0.4b" (24 layers, hidden 1024; half of the inputs of ffn.value are 0; with the suffix
// "-zeros80" or "-zeros95": 80 or 95 %), "rwkv7-1.5b" (24 layers, hidden 2048), "rwkv7-7.2b" (32
// layers, hidden 4096), "mamba2-130m" (24 layers, hidden 768), "granite-350m" (32 layers, of which
// 4 attend, hidden 768) and "qwen3.5-0.8b" (24 layers, of which 6 attend, hidden 1024) have random
// weights in F16. Any other name is a directory in --models, such as "mnist-linear" and
// "shakespeare-rfa", or a path. Ends the program if it is not a model.
std::shared_ptr<const Model> LoadModel(const Choice& choice, const std::string& name);

}  // namespace rivulet::bench
