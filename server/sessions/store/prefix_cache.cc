// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t size = std::min(a.size(), b.size());
  const auto differ =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(size), b.begin());
  return static_cast<size_t>(differ.first - a.begin());
}

}  // namespace

std::string PrefixCache::Scope(absl::string_view tenant, absl::string_view salt) {
  return absl::StrCat(tenant.size(), ":", tenant, salt);
}

int64_t PrefixCache::BytesOf(const Node& node) {
  return static_cast<int64_t>(sizeof(Node) + node.label.size() * sizeof(int32_t));
}

void PrefixCache::Put(Node* node, StatePtr state) {
  if (node->state != nullptr) states_.Remove(*node->state);
  node->state = std::move(state);
  if (node->state != nullptr) states_.Add(*node->state);
}

PrefixCache::Match PrefixCache::Find(absl::string_view scope, std::span<const int32_t> tokens,
                                     int64_t most) {
  Match match;
  Node* found = nullptr;
  const auto root = roots_.find(scope);
  if (root != roots_.end()) Descend(root->second.get(), tokens, most, &match, &found);
  if (found != nullptr) order_.splice(order_.end(), order_, found->place);
  Match of_all;
  Descend(&shared_, tokens, most, &of_all, &found);
  if (of_all.depth <= match.depth) return match;
  of_all.shared = match.shared;
  return of_all;
}

void PrefixCache::Descend(Node* root, std::span<const int32_t> tokens, int64_t most, Match* match,
                          Node** found) {
  for (Node* node = root;;) {
    if (node->state != nullptr && node->depth <= most && !node->state->forgotten()) {
      match->depth = node->depth;
      match->state = node->state;
      *found = node;
    }
    const auto left = tokens.subspan(static_cast<size_t>(node->depth));
    if (left.empty()) return;
    const auto child = node->children.find(left.front());
    if (child == node->children.end()) return;
    const size_t common = CommonPrefix(left, child->second->label);
    match->shared = node->depth + static_cast<int64_t>(common);
    if (common < child->second->label.size()) return;
    node = child->second.get();
  }
}

void PrefixCache::Keep(absl::string_view scope, std::span<const int32_t> tokens, StatePtr state) {
  if (limits_.max_bytes == 0) return;
  std::unique_ptr<Node>& root = roots_[scope];
  if (root == nullptr) {
    root = std::make_unique<Node>();
    root->scope = std::string(scope);
    nodes_bytes_ += BytesOf(*root);
  }
  Node* const node = Insert(root.get(), tokens);
  if (node->state == nullptr) {
    node->place = order_.insert(order_.end(), node);
    Put(node, std::move(state));
  } else {
    order_.splice(order_.end(), order_, node->place);
    if (node->state->forgotten()) Put(node, std::move(state));
  }
  // States that the store has forgotten are of no use; they were used long ago, too.
  while (!order_.empty() && (bytes() > limits_.max_bytes || order_.front()->state->forgotten())) {
    Remove(order_.front());
  }
}

void PrefixCache::Share(std::span<const int32_t> tokens, StatePtr state) {
  const int64_t bytes = nodes_bytes_;
  Insert(&shared_, tokens)->state = std::move(state);
  nodes_bytes_ = bytes;
}

// The node of exactly these tokens.
PrefixCache::Node* PrefixCache::Insert(Node* root, std::span<const int32_t> tokens) {
  for (Node* node = root;;) {
    const auto left = tokens.subspan(static_cast<size_t>(node->depth));
    if (left.empty()) return node;
    std::unique_ptr<Node>& child = node->children[left.front()];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->label.assign(left.begin(), left.end());
      child->depth = node->depth + static_cast<int64_t>(left.size());
      child->parent = node;
      nodes_bytes_ += BytesOf(*child);
      return child.get();
    }
    const size_t common = CommonPrefix(left, child->label);
    node = common < child->label.size() ? Split(child.get(), common) : child.get();
  }
}

// Puts a node between `child` and its parent, `at` tokens into the label. Returns it.
PrefixCache::Node* PrefixCache::Split(Node* child, size_t at) {
  Node* const parent = child->parent;
  std::unique_ptr<Node>& place = parent->children[child->label.front()];
  auto middle = std::make_unique<Node>();
  const auto cut = child->label.begin() + static_cast<std::ptrdiff_t>(at);
  middle->label.assign(child->label.begin(), cut);
  middle->depth = parent->depth + static_cast<int64_t>(at);
  middle->parent = parent;
  child->label.erase(child->label.begin(), cut);
  child->parent = middle.get();
  middle->children[child->label.front()] = std::move(place);
  place = std::move(middle);
  nodes_bytes_ += static_cast<int64_t>(sizeof(Node));
  return place.get();
}

void PrefixCache::Remove(Node* node) {
  Put(node, nullptr);
  order_.erase(node->place);
  Shrink(node);
}

// Removes nodes without a state: leaves, and nodes with one child, which takes their tokens.
void PrefixCache::Shrink(Node* node) {
  while (node->state == nullptr && node->children.empty()) {
    nodes_bytes_ -= BytesOf(*node);
    Node* const parent = node->parent;
    if (parent == nullptr) {
      roots_.erase(std::string(node->scope));
      return;
    }
    parent->children.erase(int32_t{node->label.front()});
    node = parent;
  }
  if (node->state != nullptr || node->children.size() != 1 || node->parent == nullptr) return;
  std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  child->label.insert(child->label.begin(), node->label.begin(), node->label.end());
  child->parent = node->parent;
  nodes_bytes_ -= static_cast<int64_t>(sizeof(Node));
  std::unique_ptr<Node>& place = node->parent->children[child->label.front()];
  place = std::move(child);
}

}  // namespace rivulet
