// SPDX-License-Identifier: Apache-2.0
#include "model/text/text_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::Status TooHard(absl::string_view what) {
  return InvalidField(
      "TEXT_TOO_HARD", "text",
      absl::StrCat("the model's tokenizer gives up on this text: it takes more ", "than ", what));
}

}  // namespace

TextBudget::TextBudget(uint64_t steps, size_t bytes, Stopped stopped)
    : steps_(steps), bytes_(bytes), stopped_(std::move(stopped)), bytes_left_(bytes) {}

bool TextBudget::Look() {
  if (status_.ok() && steps_used_ > steps_) status_ = TooHard(absl::StrCat(steps_, " steps"));
  if (status_.ok() && stopped_ != nullptr) status_ = stopped_();
  if (!status_.ok()) {
    next_look_ = 0;
    return false;
  }
  next_look_ = steps_used_ + std::min(kStepsPerQuestion, steps_ - steps_used_ + 1);
  return true;
}

bool TextBudget::Take(size_t bytes) {
  if (status_.ok() && bytes > bytes_left_) {
    status_ = TooHard(absl::StrCat(bytes_, " bytes of memory"));
  }
  if (!status_.ok()) {
    next_look_ = 0;
    return false;
  }
  bytes_left_ -= bytes;
  return true;
}

}  // namespace rivulet
