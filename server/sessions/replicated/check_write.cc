// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/replicated/check_write.h"

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr size_t kClaimBytes = 16;
constexpr size_t kMostIdBytes = 100;

bool IsChunkId(absl::string_view id) {
  return !id.empty() && id.size() <= kMostIdBytes &&
         id.find_first_not_of("0123456789abcdef-") == absl::string_view::npos;
}

}  // namespace

absl::Status CheckWrite(const StoreWrite& write) {
  if (write.session.empty() || write.session.size() > kMostIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("session has ", write.session.size(), " bytes; 1 to ", kMostIdBytes));
  }
  if (write.record.claim.size() != kClaimBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("record.claim has ", write.record.claim.size(), " bytes, not ", kClaimBytes));
  }
  if (!write.expected.empty() && write.expected.size() != kClaimBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected has ", write.expected.size(), " bytes, not ", kClaimBytes));
  }
  if (write.expiry <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expiry is ", absl::FormatDuration(write.expiry), ", not above 0"));
  }
  const auto check = [](absl::string_view field, absl::string_view id) {
    if (IsChunkId(id)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, " has the id \"", absl::CHexEscape(id),
                                                   "\", not [0-9a-f-], 1 to ", kMostIdBytes));
  };
  for (const StoreChunk& chunk : write.chunks) {
    if (absl::Status status = check("chunks", chunk.id); !status.ok()) return status;
  }
  for (const std::string& id : write.kept_chunks) {
    if (absl::Status status = check("kept_chunks", id); !status.ok()) return status;
  }
  for (const std::string& id : write.dropped_chunks) {
    if (absl::Status status = check("dropped_chunks", id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

int64_t StoreMilliseconds(absl::Duration duration) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365 * 100);
  return absl::ToInt64Milliseconds(absl::Ceil(std::min(duration, kLongest), absl::Milliseconds(1)));
}

}  // namespace rivulet
