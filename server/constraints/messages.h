// SPDX-License-Identifier: Apache-2.0
// What the server and rivulet-grammar (worker/) say to each other. Both are of one build, so these
// are plain structures. A message is a packet of a SOCK_SEQPACKET socket: a head and what follows
// it.
//
// rivulet-grammar reads the vocabulary from kVocabularyFile: a uint32_t that counts tokens, then
// for each a uint32_t with the length of its text, kControl for a control token, and the text. From
// kGrammarFile it reads Grammar::kind and the text of a grammar, and compiles it; then it answers
// for all matchers of it, one after another. Where one message takes too much time, it dies of
// SIGPROF.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet {

inline constexpr int kGrammarSocket = 0, kVocabularyFile = 3, kGrammarFile = 4;
inline constexpr uint32_t kControl = uint32_t{1} << 31;
inline constexpr int kCompileMillis = 20000, kMaskMillis = 500;  // of CPU time
inline constexpr uint64_t kGrammarBytes = uint64_t{1} << 28;  // of a process, beside the vocabulary
inline constexpr size_t kMaxPacketBytes = size_t{1} << 20;    // of a message
inline constexpr uint16_t kMaxTokensPushed = 8192;            // by one message
// Markers in the schemas for the library. A pattern "long LEAST MOST SET" stands for LEAST to MOST
// (-1: any number of) characters of a set; no regular expression becomes such a pattern
// (PlainPattern). A string in a value that begins with kNumber stands for the number behind it; no
// other string contains that.
inline constexpr char kLongString[] = "long ";
inline constexpr int64_t kMaxExpanded = 128;  // more characters make a string a long one
inline constexpr char kNumber[] = "rivulet number ";
// The text of Grammar::Kind::kStructuralTag is a structural tag of the library, in which "grammar"
// is, instead of a grammar, a schema as above between two of these. No JSON contains them.
inline constexpr char kSchemaBorder = '\0';
inline constexpr uint16_t kMaxForced = 64;  // tokens of one step

struct ToGrammar {
  enum class Kind : uint8_t {
    kOpen,  // a matcher. `flag`: tell forced tokens. `count` end tokens; then, each with its
            // length, the text before the matcher's, and the texts of Constraint::after
    kPush,  // `count` tokens that were written. `flag`: then tell the step
    kTry,   // tokens that may be written next: a number for the first one's mask, the next number
            // for the second one's, ..., then `count` tokens. The text stays as it is
    kClose,
  };
  Kind kind = Kind::kOpen;
  uint8_t flag = 0;
  uint16_t count = 0;
  uint32_t matcher = 0;
};

struct FromGrammar {
  enum class Kind : uint8_t {
    kCompiled,
    kRefused,      // by the library; its message
    kUnspellable,  // no tokens spell a text of the grammar
    kTooHard,      // out of memory
    kChoice,       // a step: `count` forced tokens, then the mask of the tokens that may follow
    kEnd,          // a step: `count` forced tokens; the text is complete, and nothing may follow
    kDeadEnd,   // a step: `count` forced tokens; nothing may follow, and the text is not complete
    kMismatch,  // token `count` of a push cannot follow
    kTried,     // the mask `matcher` of a kTry
  };
  Kind kind = Kind::kCompiled;
  uint8_t unused = 0;
  uint16_t count = 0;
  uint32_t matcher = 0;
};

}  // namespace rivulet
