// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: a model whose every weight can be read, or one typed error.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"
#include "model/weights/gguf_header.h"
#include "tests/fuzz/promise.h"

namespace rivulet {
namespace {

using fuzz::Promise;

void PromiseTyped(const absl::Status& status) {
  fuzz::PromiseOneLine(status);
  Promise(!GetErrorDetail(status).reason.empty(), "an error has a reason");
}

absl::Status Accept(const GgufMetadata&) { return absl::OkStatus(); }

// What is said of the beginning of a file is what is said of all of it, or that more is needed.
void CheckBeginning(absl::string_view bytes) {
  const auto whole = ParseGgufHeader(bytes, bytes.size(), Accept);
  Promise(!whole.ok() || whole->has_value(), "a whole file is enough");
  for (const size_t size : {bytes.size() / 3, bytes.size() / 2, bytes.size() - 1}) {
    const auto part = ParseGgufHeader(bytes.substr(0, size), bytes.size(), Accept);
    if (part.ok() && !part->has_value()) continue;
    Promise(part.status() == whole.status(), "the beginning of a file is parsed as the whole is");
  }
}

void CheckWeights(const Model& model) {
  const CheckpointTensors& tensors = model.tensors();
  const auto hash = tensors.Sha256();
  bool all_finite = true;
  for (const std::string& name : tensors.names()) {
    size_t count = 1;
    for (const int64_t extent : tensors.Find(name)->shape) count *= static_cast<size_t>(extent);
    std::vector<float> values(std::min<size_t>(count, size_t{1} << 16), NAN);
    const absl::Status status = tensors.Read(name, values);
    if (!status.ok()) PromiseTyped(status);
    all_finite = all_finite && status.ok();
    for (const float value : values) {
      Promise(!status.ok() || std::isfinite(value), "weights that were read are finite");
    }
  }
  Promise(!hash.ok() || all_finite, "the scan finds what reading finds");
  const auto weights = PackedWeights::Load(model, WeightPrecision::kAuto);
  if (!weights.ok()) PromiseTyped(weights.status());
}

void Run(absl::string_view bytes) {
  CheckBeginning(bytes);
  const int fd = memfd_create("gguf", MFD_CLOEXEC);
  Promise(fd >= 0, "memfd_create works");
  Promise(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "a memory file takes what is written");
  const auto model = Model::Open(absl::StrCat("/proc/self/fd/", fd));
  if (model.ok()) {
    CheckWeights(**model);
  } else {
    PromiseTyped(model.status());
  }
  close(fd);
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) rivulet::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
