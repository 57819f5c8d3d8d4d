// SPDX-License-Identifier: Apache-2.0
#include "model/base/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rivulet {
namespace {
constexpr char kReasonUrl[] = "rivulet/reason";
constexpr char kFieldUrl[] = "rivulet/field";
constexpr char kRetryUrl[] = "rivulet/retry_after_us";
constexpr char kMetadataUrl[] = "rivulet/metadata/";  // and the key
}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const ErrorDetail& detail) {
  absl::Status status(code, message);
  if (!detail.reason.empty()) status.SetPayload(kReasonUrl, absl::Cord(detail.reason));
  if (!detail.field.empty()) status.SetPayload(kFieldUrl, absl::Cord(detail.field));
  if (detail.retry_after > absl::ZeroDuration()) {
    status.SetPayload(kRetryUrl,
                      absl::Cord(absl::StrCat(absl::ToInt64Microseconds(detail.retry_after))));
  }
  for (const auto& [key, value] : detail.metadata) {
    status.SetPayload(absl::StrCat(kMetadataUrl, key), absl::Cord(value));
  }
  return status;
}

absl::Status InvalidField(absl::string_view reason, absl::string_view field,
                          absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.field = std::string(field);
  return MakeError(absl::StatusCode::kInvalidArgument, message, detail);
}

absl::Status Exhausted(absl::string_view reason, absl::Duration retry_after,
                       absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.retry_after = retry_after;
  return MakeError(absl::StatusCode::kResourceExhausted, message, detail);
}

ErrorDetail GetErrorDetail(const absl::Status& status) {
  ErrorDetail detail;
  if (auto reason = status.GetPayload(kReasonUrl)) detail.reason = std::string(*reason);
  if (auto field = status.GetPayload(kFieldUrl)) detail.field = std::string(*field);
  if (auto retry = status.GetPayload(kRetryUrl)) {
    int64_t microseconds = 0;
    if (absl::SimpleAtoi(std::string(*retry), &microseconds)) {
      detail.retry_after = absl::Microseconds(microseconds);
    }
  }
  status.ForEachPayload([&detail](absl::string_view url, const absl::Cord& value) {
    if (absl::ConsumePrefix(&url, kMetadataUrl)) detail.metadata.emplace(url, value);
  });
  return detail;
}

absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  return MakeError(status.code(), absl::StrCat(prefix, ": ", status.message()),
                   GetErrorDetail(status));
}

}  // namespace rivulet
