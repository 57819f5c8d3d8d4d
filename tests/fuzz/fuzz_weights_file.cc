// SPDX-License-Identifier: Apache-2.0
// Any bytes as model.safetensors: a file whose every weight can be read, or one typed error.
//
// The first byte of an input says what the rest is: 'F' the whole file; else the header, before
// which its length is written and behind which 32 bytes of data, so that the fuzzer reaches the
// rules behind the first ones sooner; 'Q' such a header with 54 bytes behind it, for tensors that
// may be blocks of integers.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/weights/weights_file.h"
#include "tests/fuzz/promise.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using fuzz::Promise;

void CheckValid(const WeightsFile& file, const std::vector<TensorSpec>& specs) {
  const auto hash = file.Sha256();
  bool all_finite = true;
  for (const TensorSpec& spec : specs) {
    size_t count = 1;
    for (const int64_t extent : spec.shape) count *= static_cast<size_t>(extent);
    std::vector<float> values(count, NAN);
    const absl::Status status = file.Read(spec.name, values);
    all_finite = all_finite && status.ok();
    if (!status.ok()) fuzz::PromiseOneLine(status);
    for (const float value : values) {
      Promise(!status.ok() || std::isfinite(value), "weights that were read are finite");
    }
  }
  Promise(hash.ok() == all_finite, "the scan finds what reading finds");
  Promise(!hash.ok() || hash->size() == 64, "a hash has 64 digits");
}

const std::vector<TensorSpec>& Numbers() {
  static const auto* const specs = new std::vector<TensorSpec>{{"a", {2, 3}}, {"b", {4}}};
  return *specs;
}

const std::vector<TensorSpec>& Blocks() {
  static const auto* const specs = new std::vector<TensorSpec>{{"a", {1, 32}}, {"b", {1, 32}}};
  return *specs;
}

void Run(absl::string_view bytes, const std::vector<TensorSpec>& specs) {
  const int fd = memfd_create("weights", MFD_CLOEXEC);
  Promise(fd >= 0, "memfd_create works");
  Promise(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "a memory file takes what is written");
  const auto file = WeightsFile::Open(absl::StrCat("/proc/self/fd/", fd), specs);
  if (file.ok()) {
    CheckValid(**file, specs);
  } else {
    Promise(absl::IsDataLoss(file.status()), "errors are DATA_LOSS");
    fuzz::PromiseOneLine(file.status());
  }
  close(fd);
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'F') {
    rivulet::Run(bytes, rivulet::Numbers());
  } else if (data[0] == 'Q') {
    rivulet::Run(rivulet::testing::WriteSafetensors(bytes, std::string(54, '\1')),
                 rivulet::Blocks());
  } else {
    rivulet::Run(rivulet::testing::WriteSafetensors(bytes, std::string(32, '\1')),
                 rivulet::Numbers());
  }
  return 0;
}
