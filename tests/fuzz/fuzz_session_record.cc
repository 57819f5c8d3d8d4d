// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a shared store has of a session: a typed error of one line, or a record that
// encodes to the same bytes, or tokens. Checksums stop a fuzzer, so the input is also taken as the
// payload of a section whose checksum matches.
#include <string>

#include "model/base/error.h"
#include "server/sessions/replicated/session_record.h"
#include "server/sessions/sections.h"
#include "tests/fuzz/promise.h"

namespace rivulet {
namespace {

using fuzz::Promise;

void PromiseTyped(const absl::Status& status) {
  fuzz::PromiseOneLine(status);
  const absl::StatusCode code = status.code();
  Promise(code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kFailedPrecondition,
          "the documented codes");
  Promise(!GetErrorDetail(status).reason.empty(), "a reason");
}

void Decode(const std::string& bytes) {
  const absl::StatusOr<SessionRecord> record = DecodeRecord(bytes);
  if (record.ok()) {
    const absl::StatusOr<SessionRecord> again = DecodeRecord(EncodeRecord(*record));
    Promise(again.ok() && EncodeRecord(*again) == EncodeRecord(*record), "it can be written again");
    int64_t tokens = 0;
    for (const ChunkUse& use : record->chunks) tokens += record->closed ? 0 : use.tokens;
    Promise(record->closed || tokens == record->position, "chunks for each token");
    Promise(record->closed || FirstTokens(record->chunks, record->position) == record->chunks,
            "all of its chunks are used");
  } else {
    PromiseTyped(record.status());
  }
  TokenHistory history;
  const absl::Status status = AppendTokens({"c", 3}, bytes, "t", &history);
  if (!status.ok()) PromiseTyped(status);
  Promise(history.size() == (status.ok() ? 3 : 0), "all of the tokens or none");
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  rivulet::Decode(bytes);
  for (const uint32_t type : {1u, 2u}) {
    rivulet::SectionWriter writer;
    writer.AddSection(type, bytes);
    rivulet::Decode(writer.Take());
  }
  return 0;
}
