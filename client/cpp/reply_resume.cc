// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/reply_resume.h"

#include <cstdint>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/client_error.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

constexpr int kBarrenCalls = 5;  // calls in a row that bring nothing; then a begun reply ends
constexpr absl::Duration kFirstWait = absl::Milliseconds(100);
constexpr int kLossesWithCookie = 2;  // lost calls in a row; then another replica is asked

uint64_t DrawSeed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// The jitter keeps clients that were cut off together from returning together. Within five calls no
// wait reaches the maximum of 2 s.
absl::Duration WaitAfter(int losses) {
  std::random_device random;
  return kFirstWait * (1 << (losses - 1)) *
         std::uniform_real_distribution<double>(0.8, 1.2)(random);
}

// Our server sends details with UNKNOWN and INTERNAL; errors without details come from between.
bool IsLost(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return true;
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return !HasDetails(status);
    default:
      return false;
  }
}

}  // namespace

ReplyResume::ReplyResume(v1::GenerateRequest request, bool resume, int max_attempts,
                         absl::Time deadline, std::string cookie)
    : request_(std::move(request)),
      resume_(resume),
      max_attempts_(max_attempts),
      deadline_(deadline),
      received_(request_.resume()),
      cookie_(std::move(cookie)) {
  // A session has a seed, and so has a reply that the caller continues.
  if (!request_.sampling().has_seed() && !request_.has_session() && !request_.has_resume()) {
    request_.mutable_sampling()->set_seed(DrawSeed());
  }
}

template <typename Part>
bool ReplyResume::Take(Part* part) {
  const bool first = !std::exchange(begun_, true);
  complete_ = complete_ || part->has_usage();
  if (!resume_) return true;  // nothing is kept
  if (!first) {
    part->clear_seed();
    part->clear_fingerprint();
  } else if (part->has_fingerprint()) {
    received_.set_fingerprint(part->fingerprint());
  }
  const int32_t sample = part->sample_index();
  if (ended_.contains(sample)) {
    part->clear_first_position();
    part->clear_tokens();
    part->clear_text();
    part->clear_logprobs();
    part->clear_top_logprobs();
    part->clear_finish();
    part->clear_session();
  }
  if (part->has_finish()) ended_.insert(sample);
  if (sample >= 0 && sample < NumSamples()) {
    while (received_.samples_size() <= sample) received_.add_samples();
    received_.mutable_samples(sample)->mutable_ids()->MergeFrom(part->tokens());
  }
  const bool brings = first || part->tokens_size() > 0 || !part->text().empty() ||
                      part->has_finish() || part->has_usage();
  if (brings) losses_ = 0;
  return brings;
}

template bool ReplyResume::Take(v1::GenerateReply* part);
template bool ReplyResume::Take(v1::MultiplexPart* part);

bool ReplyResume::CanBeContinued() const {
  // Without a position the next call would continue after the tokens of the lost call.
  if (request_.has_session() && !request_.session().has_position()) return false;
  return !begun_ || (resume_ && received_.has_fingerprint());
}

bool ReplyResume::MayRepeat(const absl::Status& status, const ErrorInfo& info) const {
  if (!CanBeContinued()) return false;
  const bool refused_for_now =
      repeated_ && absl::IsResourceExhausted(status) && info.retry_delay > absl::ZeroDuration();
  const bool unknown_there = drops_cookie_ && info.reason == kSessionNotFound;
  return IsLost(status) || info.reason == kSessionMoved || refused_for_now || unknown_there;
}

void ReplyResume::ChooseCookie(const ErrorInfo& info) {
  if (drops_cookie_ && info.reason == kSessionNotFound) keeps_cookie_ = true;
  const bool leaves = LeavesReplica(info) || losses_ >= kLossesWithCookie;
  drops_cookie_ = leaves && !keeps_cookie_ && !cookie_.empty();
}

std::optional<absl::Duration> ReplyResume::NextCall(absl::Status* status) {
  if (complete_ && IsLost(*status)) *status = absl::OkStatus();  // the caller lacks nothing
  const ErrorInfo info = GetErrorInfo(*status);
  if (status->ok() || !MayRepeat(*status, info)) return std::nullopt;
  if (losses_++ == 0) first_loss_ = *status;
  if (losses_ > (begun_ ? kBarrenCalls : max_attempts_ - 1)) {
    *status = first_loss_;  // it says why the reply was lost
    return std::nullopt;
  }
  const bool asked = info.retry_delay > absl::ZeroDuration();
  const absl::Duration wait = asked ? info.retry_delay : WaitAfter(losses_);
  if (absl::Now() + wait >= deadline_) {
    *status = absl::DeadlineExceededError(
        absl::StrCat("the deadline leaves no time to try again after: ", status->message()));
    return std::nullopt;
  }
  ChooseCookie(info);
  repeated_ = true;
  *request_.mutable_resume() = received_;
  if (received_.has_fingerprint()) {
    // A sample without received parts has no entry yet.
    while (request_.resume().samples_size() < NumSamples())
      request_.mutable_resume()->add_samples();
  }
  return wait;
}

}  // namespace rivulet
