// SPDX-License-Identifier: Apache-2.0
// SampleConstraint: the constraint of a sample between its rows: the masks of the next row, and
// whether the row must wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "server/constraints/compiler.h"

namespace rivulet {

// Thread: the loop.
class SampleConstraint {
 public:
  // `matcher` null: no constraint. `late_masks`: of BackendLimits.
  SampleConstraint(std::unique_ptr<ConstraintMatcher> matcher, bool late_masks)
      : matcher_(std::move(matcher)), late_masks_(late_masks) {}

  explicit operator bool() const { return matcher_ != nullptr; }
  const TokenMask* mask() const { return matcher_.get(); }
  // The last row fed its tokens and did not draw, as its mask was late.
  bool late() const { return late_; }
  // No row may be planned yet.
  bool waits() const {
    return matcher_ != nullptr && (late_ || !late_masks_) && matcher_->step() == nullptr;
  }

  // Whether the next row may have drafts, of which `first` is the first. Where masks are late,
  // those of drafts would delay the next row's still more.
  bool MayDraft() const { return matcher_ == nullptr || (late_masks_ && !late_ && !was_late_); }
  bool Allows(int32_t first) const {
    if (matcher_ == nullptr || matcher_->Bits().empty()) return true;
    return (matcher_->Bits()[static_cast<size_t>(first) / 32] >> (first % 32) & 1) != 0;
  }
  // The masks of the next row's draws after `drafts`, valid until the next call. REQUIRES:
  // MayDraft(), there is a constraint.
  void Try(std::span<const int32_t> drafts, std::vector<const TokenMask*>* masks) {
    tried_ = matcher_->Try(drafts);
    drafts_.assign(drafts.begin(), drafts.end());
    for (const auto& mask : tried_) masks->push_back(mask.get());
  }

  // A row drew `token`.
  void OnDrawn(int32_t token) {
    was_late_ = std::exchange(late_, false);
    if (matcher_ == nullptr) return;
    drawn_.push_back(token);
    const size_t drawn = drawn_.size();
    if (drawn > drafts_.size() || drafts_[drawn - 1] != token) Push();  // else it draws again
  }
  void OnLate() {
    if (!drawn_.empty()) Push();
    drafts_.clear();
    late_ = was_late_ = due_ = true;
  }

  // What may follow what was written, once; null: not known yet, or told before. The caller writes
  // its forced tokens.
  const ConstraintStep* Take() {
    const ConstraintStep* const step = due_ ? matcher_->step() : nullptr;
    if (step == nullptr) return nullptr;
    due_ = false;
    matcher_->TakeForced();
    return step;
  }
  // Tokens are fed before the next draw.
  void OnFeed() { late_ = false; }

 private:
  void Push() {
    matcher_->Push(drawn_);
    drawn_.clear();
    drafts_.clear();
    due_ = true;
  }

  std::unique_ptr<ConstraintMatcher> matcher_;
  std::vector<int32_t> drafts_;                    // of the outstanding row
  std::vector<std::unique_ptr<TokenMask>> tried_;  // their masks
  std::vector<int32_t> drawn_;                     // by that row, and not pushed yet
  bool late_masks_;
  bool due_ = false;  // the step was not told yet
  bool late_ = false;
  bool was_late_ = false;  // of the last draw
};

}  // namespace rivulet
