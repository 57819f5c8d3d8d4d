// SPDX-License-Identifier: Apache-2.0
// LookupIndex: drafts from the sequence itself. The longest suffix of 3 to 16 tokens that occurred
// in the sequence before gives the tokens that followed it there ("prompt lookup decoding"
// [Saxena 2023]). A text that the client expects as the reply lies before the sequence.
//
// A chain of earlier positions for each hash of three tokens, as in LZ77 [Deutsch 1996, RFC 1951,
// 4], bounded to kMostCandidates positions a search. A match that goes on is not searched for
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rivulet {

// Thread: one.
class LookupIndex {
 public:
  static constexpr int kShortest = 3, kLongest = 16, kMostCandidates = 16;
  static constexpr size_t kMostTokens = size_t{1} << 18;  // older tokens are forgotten

  // Memory: at most 24 bytes for each token.
  LookupIndex() : latest_(64, kNone) {}

  // The tokens so far were a prediction of the reply, not the sequence's beginning.
  void EndPrediction();
  // The next token is the reply's first: it is expected to be the prediction's first.
  void BeginReply();
  // The sequence's next token. Constant time, amortized; at most a millisecond.
  void Push(int32_t token);
  // Looks for an earlier place like the end, if the last one is no longer like it. Constant time.
  void Search();
  bool found() const { return match_ != kNone && length_ >= kShortest; }
  // Appends up to `most` tokens that may follow to `drafts`; none unless found().
  void AddDrafts(int most, std::vector<int32_t>* drafts) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr int32_t kBorder = -1;  // behind the prediction; equals no token

  int32_t At(uint32_t position) const { return tokens_[position % kMostTokens]; }
  bool Remembers(uint32_t position) const {
    return position < end_ && end_ - position <= kMostTokens;
  }
  // Adds the place behind the three tokens before `end` to the chain of their hash.
  void Link(uint32_t end);
  void Grow();
  // The number of equal tokens before `position` and before the end, at most kLongest.
  int EqualBefore(uint32_t position) const;

  std::vector<int32_t> tokens_;    // ring
  std::vector<uint32_t> earlier_;  // ring: the position behind the same hash's last occurrence
  std::vector<uint32_t> latest_;   // by hash: the position behind its last occurrence
  uint32_t end_ = 0;               // tokens pushed, prediction included
  bool predicts_ = false;
  // The token at match_ may come next: `length_` tokens before it equal the last ones.
  uint32_t match_ = kNone;
  int length_ = 0;
};

}  // namespace rivulet
