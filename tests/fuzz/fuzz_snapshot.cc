// SPDX-License-Identifier: Apache-2.0
// Any bytes as a snapshot: a typed error of one line, or a snapshot that encodes to the same bytes
// and whose values are in their ranges. Checksums stop a fuzzer at the first section, so the input
// is also taken as the payloads of sections with checksums that match.
#include <cmath>
#include <cstring>
#include <string>

#include "model/base/error.h"
#include "server/sessions/sequence_hash.h"
#include "server/sessions/snapshot.h"
#include "tests/fuzz/promise.h"
#include "tests/fuzz/snapshot_sections.h"

namespace rivulet {
namespace {

using fuzz::Promise;

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
  for (const float value : decoded->state) Promise(std::isfinite(value), "a finite state");
  const absl::StatusOr<Snapshot> again = DecodeSnapshot(EncodeSnapshot(*decoded, ""), "");
  Promise(again.ok() && again->tokens == decoded->tokens && again->marks == decoded->marks,
          "what was read can be written and read again");
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  rivulet::Decode(bytes);
  rivulet::Decode(rivulet::fuzz::SnapshotFromPayloads(bytes));
  return 0;
}
