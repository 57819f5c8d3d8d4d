// SPDX-License-Identifier: Apache-2.0
// SharedPrompts: explains the hits of the prefix cache. If a request did not feed all of its
// tokens, then a request with the same tenant, salt and beginning must have arrived before its end,
// or the operator loaded such a state for all tenants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rivulet {

// Thread: one.
class SharedPrompts {
 public:
  // A key for tenant and salt.
  static std::string Scope(const std::string& tenant, const std::string& salt) {
    return absl::StrCat(tenant.size(), ":", tenant, salt);
  }
  // Request `number`, which came in turn `turn`, may leave states of any beginning of `tokens`.
  void Offer(int number, int turn, std::string scope, std::vector<int32_t> tokens) {
    offers_.push_back({number, turn, std::move(scope), std::move(tokens)});
  }
  void OfferToAll(std::vector<int32_t> tokens) { of_all_.push_back(std::move(tokens)); }
  // Request `number`, which ended in turn `turn`, continued from a state after `tokens`.
  void Hit(int number, int turn, std::string scope, std::vector<int32_t> tokens) {
    hits_.push_back({number, turn, std::move(scope), std::move(tokens)});
  }
  // Called when every request has ended. Returns a hit that no request and no operator explains;
  // empty: none.
  std::string Unexplained() const {
    for (const Entry& hit : hits_) {
      const bool loaded = std::any_of(of_all_.begin(), of_all_.end(), [&](const auto& tokens) {
        return Begins(tokens, hit.tokens);
      });
      const bool left = std::any_of(offers_.begin(), offers_.end(), [&](const Entry& offer) {
        return offer.number != hit.number && offer.turn <= hit.turn && offer.scope == hit.scope &&
               Begins(offer.tokens, hit.tokens);
      });
      if (loaded || left) continue;
      return absl::StrCat("I4: #", hit.number, " went on after ", hit.tokens.size(),
                          " tokens that nobody of its tenant and salt had given");
    }
    return "";
  }

 private:
  struct Entry {
    int number, turn;
    std::string scope;
    std::vector<int32_t> tokens;
  };
  static bool Begins(const std::vector<int32_t>& tokens, const std::vector<int32_t>& beginning) {
    return tokens.size() >= beginning.size() &&
           std::equal(beginning.begin(), beginning.end(), tokens.begin());
  }

  std::vector<Entry> offers_, hits_;
  std::vector<std::vector<int32_t>> of_all_;
};

}  // namespace rivulet
