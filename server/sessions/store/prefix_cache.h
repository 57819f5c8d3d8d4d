// SPDX-License-Identifier: Apache-2.0
// PrefixCache: states shared by requests that begin with the same tokens. Each scope has a radix
// tree of tokens; a node may hold the state after the tokens that lead to it.
//
//   [t h e _ c a t] -- s a t ...     state after "the_cat sat"
//                  \-- r a n ...     state after "the_cat ran"
//
// A scope is a tenant with a salt: a request finds the states of its own scope, and the states that
// the operator loaded at start for all tenants. Leaves hold states; an inner node holds a state if
// a request kept one there because prompts part there. The bytes of states and tokens are limited;
// the states used longest ago are dropped first.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

struct PrefixCacheLimits {
  int64_t max_bytes = int64_t{256} << 20;  // of states, also in files, and tokens; 0: no cache
  int64_t least_gain = 16;  // least tokens that a kept state saves, unless it was asked for
};

// Thread: the thread of the StateStore, which outlives the cache.
class PrefixCache {
 public:
  explicit PrefixCache(const PrefixCacheLimits& limits) : limits_(limits) {}

  // The name of a scope. `salt` may hold anything.
  static std::string Scope(absl::string_view tenant, absl::string_view salt);

  struct Match {
    int64_t depth = 0;   // tokens that `state` has seen
    StatePtr state;      // null: none
    int64_t shared = 0;  // leading tokens in common with a cached prompt of the scope
  };
  // The deepest state after at most `most` of the tokens. It then counts as used last.
  Match Find(absl::string_view scope, std::span<const int32_t> tokens, int64_t most);
  // Keeps `state`, the state after exactly these tokens. Other states make room. REQUIRES: at least
  // one token.
  void Keep(absl::string_view scope, std::span<const int32_t> tokens, StatePtr state);
  // Keeps `state` for every scope and for ever; it is not counted in the bytes of the cache.
  void Share(std::span<const int32_t> tokens, StatePtr state);

  const PrefixCacheLimits& limits() const { return limits_; }
  int64_t bytes() const { return nodes_bytes_ + states_.bytes(); }
  int64_t num_states() const { return static_cast<int64_t>(order_.size()); }

 private:
  struct Node;
  using Order = std::list<Node*>;
  struct Node {
    std::vector<int32_t> label;  // tokens from the parent to here; empty: the root
    int64_t depth = 0;           // tokens from the root to here
    Node* parent = nullptr;
    std::string scope;                                             // of a root
    absl::flat_hash_map<int32_t, std::unique_ptr<Node>> children;  // by the first token of a label
    StatePtr state;
    Order::iterator place;  // where it has a state and is counted
  };

  static void Descend(Node* root, std::span<const int32_t> tokens, int64_t most, Match* match,
                      Node** found);
  Node* Insert(Node* root, std::span<const int32_t> tokens);
  Node* Split(Node* child, size_t at);
  void Put(Node* node, StatePtr state);
  void Remove(Node* node);
  void Shrink(Node* node);
  static int64_t BytesOf(const Node& node);

  const PrefixCacheLimits limits_;
  absl::flat_hash_map<std::string, std::unique_ptr<Node>> roots_;  // by scope
  Node shared_;                                                    // root of the states of Share
  Order order_;  // nodes with states, used longest ago first
  int64_t nodes_bytes_ = 0;
  SharedBytes states_;
};

}  // namespace rivulet
