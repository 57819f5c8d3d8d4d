// SPDX-License-Identifier: Apache-2.0
// Any bytes as a snapshot: a typed error of one line, or a snapshot that encodes to the same bytes
// and whose values are in their ranges. Checksums stop a fuzzer at the first section, so the input
// is also taken as the payloads of sections with checksums that match, in each format version. What
// can be read is offered to a model with softmax attention as a snapshot of its own.
#include <cstring>
#include <memory>
#include <string>

#include "model/base/error.h"
#include "model/model.h"
#include "server/sessions/sequence_hash.h"
#include "server/sessions/snapshot.h"
#include "tests/fuzz/promise.h"
#include "tests/fuzz/snapshot_sections.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using fuzz::Promise;

// One head of two numbers: a block of keys and values takes 512 bytes.
const Model& Attention() {
  static const std::shared_ptr<const Model> model = [] {
    ModelConfig config = testing::TinyConfig();
    config.num_layers = config.num_heads = config.key_dim = config.value_dim = 1;
    config.encoder().softmax = true;
    const testing::TempDir directory;
    Promise(testing::WriteRandomModel(directory.File("m"), config, 1).ok(), "a model");
    return *Model::Load(directory.File("m"));
  }();
  return *model;
}

void Offer(Snapshot snapshot) {
  const Model& model = Attention();
  SetFingerprint(model, &snapshot);
  BackendLimits limits;
  limits.state = model.config().state().size();
  limits.numerics_id = snapshot.numerics_id;
  const absl::Status status = CheckSnapshot(snapshot, model, limits, snapshot.tenant);
  if (!status.ok()) {
    fuzz::PromiseOneLine(status);
    return Promise(absl::IsDataLoss(status), "nothing but damage is left to refuse");
  }
  Promise(
      snapshot.fed == 0 || snapshot.state.size() * sizeof(float) == limits.state.At(snapshot.fed),
      "a state of the size that its tokens make");
  Promise(limits.state.AllFinite(snapshot.state), "a finite state");
}

void Decode(const std::string& bytes) {
  const absl::StatusOr<Snapshot> decoded = DecodeSnapshot(bytes, "");
  if (!decoded.ok()) {
    fuzz::PromiseOneLine(decoded.status());
    const absl::StatusCode code = decoded.status().code();
    Promise(code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kFailedPrecondition,
            "the documented codes");
    Promise(!GetErrorDetail(decoded.status()).reason.empty(), "a reason");
    return;
  }
  Promise(decoded->tokens.size() == decoded->generated.size(), "a flag for each token");
  Promise(decoded->sequence_hash == HashTokens(kEmptySequenceHash, decoded->tokens), "the hash");
  Promise(decoded->fed >= 0 && decoded->fed <= int64_t(decoded->tokens.size()) + 1, "fed");
  Promise(decoded->state.empty() == (decoded->fed == 0), "a state where something was fed");
  const absl::StatusOr<Snapshot> again = DecodeSnapshot(EncodeSnapshot(*decoded, ""), "");
  Promise(again.ok() && again->tokens == decoded->tokens && again->marks == decoded->marks,
          "what was read can be written and read again");
  Offer(*decoded);
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  rivulet::Decode(bytes);
  for (const uint32_t version : {1u, 2u, 3u}) {
    rivulet::Decode(rivulet::fuzz::SnapshotFromPayloads(bytes, version));
  }
  return 0;
}
