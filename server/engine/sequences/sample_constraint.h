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

  // Whether the next row may have drafts, of which `first` is the first.
  bool MayDraft() const { return matcher_ == nullptr || (late_masks_ && !late_); }
  bool Allows(int32_t first) const {
    if (matcher_ == nullptr || matcher_->Bits().empty()) return true;
    return (matcher_->Bits()[static_cast<size_t>(first) / 32] >> (first % 32) & 1) != 0;
  }
  // The mask of the draw after `draft`, which follows the drafts before.
  const TokenMask* AddDraft(int32_t draft) {
    Draft& added = drafts_.emplace_back();
    added.token = draft;
    added.after = (drafts_.size() > 1 ? *drafts_[drafts_.size() - 2].after : *matcher_).Fork();
    added.after->Push({&draft, 1});
    return added.after.get();
  }
  // Before each row.
  void DropDrafts() {
    drafts_.clear();
    next_draft_ = 0;
  }

  // A row drew `token`.
  void OnDrawn(int32_t token) {
    late_ = false;
    if (matcher_ == nullptr) return;
    due_ = true;
    if (next_draft_ < drafts_.size() && drafts_[next_draft_].token == token) {
      std::swap(matcher_, drafts_[next_draft_++].after);  // the row has the masks until it is done
      return;
    }
    matcher_->Push({&token, 1});
    next_draft_ = drafts_.size();
  }
  void OnLate() { late_ = due_ = true; }
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
  struct Draft {
    int32_t token = 0;
    std::unique_ptr<ConstraintMatcher> after;  // of the text that ends with it
  };

  std::unique_ptr<ConstraintMatcher> matcher_;
  std::vector<Draft> drafts_;  // of the outstanding run
  size_t next_draft_ = 0;      // the drafts before it were drawn
  bool late_masks_;
  bool due_ = false;  // the step was not told yet
  bool late_ = false;
};

}  // namespace rivulet
