// SPDX-License-Identifier: Apache-2.0
// FakeConstraints: a ConstraintCompiler for choices alone, in this process and without the library.
// What it says is known after a number of looks at it, so a schedule can be repeated.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/text_tokenizer.h"
#include "server/constraints/compiler.h"

namespace rivulet {

// Thread: the engine's loop.
class FakeConstraints final : public ConstraintCompiler {
 public:
  // `looks`: how many looks at a step find nothing; called for each step and each grammar.
  FakeConstraints(const TextTokenizer* tokenizer, int vocab_size, std::function<int()> looks)
      : tokenizer_(tokenizer), vocab_size_(vocab_size), looks_(std::move(looks)) {}

  void SetWake(std::function<void()> wake) override { wake_ = std::move(wake); }
  // Fails if one of the choices is "fail".
  std::shared_ptr<ConstraintGrammar> Compile(const Grammar& grammar, const std::string&) override {
    ++compiled;
    return std::make_shared<Texts>(this, grammar.text);
  }
  int compiled = 0;

 private:
  // True once it has been asked often enough; else wakes the engine, so that it asks again.
  bool Known(int* looks) const {
    if (*looks == 0) return true;
    --*looks;
    if (wake_) wake_();
    return false;
  }

  class Matcher final : public ConstraintMatcher {
   public:
    Matcher(const FakeConstraints* owner, std::vector<std::string> texts, MatcherSpec spec)
        : owner_(*owner), texts_(std::move(texts)), spec_(std::move(spec)) {}

    const ConstraintStep* step() const override { return owner_.Known(&looks_) ? &step_ : nullptr; }
    std::vector<std::unique_ptr<TokenMask>> Try(std::span<const int32_t> tokens) override {
      std::vector<std::unique_ptr<TokenMask>> masks;
      for (size_t i = 1; i <= tokens.size(); ++i) {
        auto tried = std::make_unique<Matcher>(&owner_, texts_, spec_);
        tried->written_ = written_;
        tried->Push(tokens.first(i));
        masks.push_back(std::move(tried));
      }
      return masks;
    }

   private:
    void DoPush(std::span<const int32_t> tokens) override {
      looks_ = owner_.looks_();
      for (const int32_t token : tokens)
        written_ += std::string(owner_.tokenizer_->TokenBytes(token));
      step_ = Next();
    }
    // Whether a text begins with `begin`; `whole`: is it.
    bool Begins(const std::string& begin, bool whole) const {
      for (const std::string& text : texts_) {
        if (whole ? text == begin : text.substr(0, begin.size()) == begin) return true;
      }
      return false;
    }
    ConstraintStep Next() {
      ConstraintStep step;
      while (true) {
        step.mask.assign(MaskWords(owner_.vocab_size_), 0);
        const auto allow = [&step](int32_t token) {
          step.mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
        };
        int allowed = 0;
        int32_t only = 0;
        for (int32_t token = 0; token < owner_.vocab_size_; ++token) {
          const std::string text(owner_.tokenizer_->TokenBytes(token));
          if (text.empty() || owner_.tokenizer_->IsSpecial(token)) continue;
          if (std::ranges::count(spec_.end_tokens, token) > 0) continue;
          if (!Begins(written_ + text, false)) continue;
          allow(token);
          ++allowed;
          only = token;
        }
        const bool complete = Begins(written_, true);
        if (!Begins(written_, false)) {
          step.kind = ConstraintStep::Kind::kFailed;
          step.status = InvalidField("CONSTRAINT_MISMATCH", "constraint", "cannot follow");
        } else if (allowed == 0) {
          using Kind = ConstraintStep::Kind;
          step.kind = complete ? Kind::kEnd : Kind::kDeadEnd;
        } else if (allowed == 1 && !complete && spec_.forced) {
          written_ += std::string(owner_.tokenizer_->TokenBytes(only));
          step.forced.push_back(only);
          continue;
        } else if (complete) {
          for (const int32_t token : spec_.end_tokens) allow(token);
        }
        return step;
      }
    }

    const FakeConstraints& owner_;
    const std::vector<std::string> texts_;
    const MatcherSpec spec_;
    std::string written_;
    mutable int looks_ = 0;
    ConstraintStep step_;
  };

  class Texts final : public ConstraintGrammar {
   public:
    Texts(const FakeConstraints* owner, const std::string& ebnf) : owner_(*owner) {
      for (size_t at = ebnf.find('"'); at != std::string::npos; at = ebnf.find('"', at)) {
        std::string& text = texts_.emplace_back();
        for (++at; ebnf[at] != '"'; ++at) {
          if (ebnf[at] == '\\') {
            AppendUtf8(static_cast<uint32_t>(std::stoul(ebnf.substr(at + 2, 8), nullptr, 16)),
                       &text);
            at += 9;
          } else {
            text += ebnf[at];
          }
        }
        ++at;
      }
    }
    std::optional<absl::Status> status() const override {
      if (!owner_.Known(&looks_)) return std::nullopt;
      for (const std::string& text : texts_) {
        if (text == "fail") return InvalidField("CONSTRAINT_TOO_HARD", "constraint", "fails");
      }
      return absl::OkStatus();
    }
    std::unique_ptr<ConstraintMatcher> NewMatcher(const MatcherSpec& spec) override {
      return std::make_unique<Matcher>(&owner_, texts_, spec);
    }

   private:
    const FakeConstraints& owner_;
    std::vector<std::string> texts_;
    mutable int looks_ = owner_.looks_();
  };

  const TextTokenizer* const tokenizer_;
  const int vocab_size_;
  const std::function<int()> looks_;
  std::function<void()> wake_;
};

}  // namespace rivulet
