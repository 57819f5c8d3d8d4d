// SPDX-License-Identifier: Apache-2.0
// rivulet-grammar: compiles grammars and tells which tokens may follow, for the server that starts
// it (../messages.h). Schemas and patterns come from strangers, and XGrammar cannot be cancelled:
// so each grammar has a process of its own, with limits of time and memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "server/constraints/worker/rewrite.h"
#include "server/constraints/worker/token_matcher.h"
#include "xgrammar/compiler.h"

namespace rivulet {
namespace {

using Kind = FromGrammar::Kind;

// Longest run of white space between two tokens of JSON.
constexpr int kMaxSpaces = 12;
// Tokens that are tried, to find out whether the vocabulary spells a text of the grammar.
constexpr int kMaxTries = 256;

template <typename T>
iovec Bytes(const T& values) {
  return {const_cast<void*>(static_cast<const void*>(values.data())),
          values.size() * sizeof(*values.data())};
}

void Tell(FromGrammar head, iovec first = {}, iovec second = {}) {
  iovec parts[] = {{&head, sizeof(head)}, first, second};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 3;
  if (sendmsg(kGrammarSocket, &message, MSG_NOSIGNAL) < 0) _exit(1);
}

[[noreturn]] void Fail(Kind kind, std::string_view why) {
  Tell({.kind = kind}, Bytes(why));
  _exit(1);
}

// Ends the process with SIGPROF once it has computed for so long; 0: never.
void LimitTime(int millis) {
  const itimerval timer = {{0, 0}, {millis / 1000, millis % 1000 * 1000}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void LimitMemory() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const uint64_t most = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + kGrammarBytes;
  const rlimit limit = {most, most}, none = {0, 0};
  setrlimit(RLIMIT_AS, &limit);
  setrlimit(RLIMIT_CORE, &none);
}

// What XGrammar has logged: it warns of a part of a grammar that it ignores.
std::string Logged() {
  std::string text(4096, '\0');
  const ssize_t size = pread(STDERR_FILENO, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

xgrammar::Grammar OfSchema(const std::string& schema) {
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt,
                                           std::nullopt, /*strict_mode=*/true, kMaxSpaces);
}

std::string JsonString(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c == '\n' ? "\\n" : std::string(1, c);
  }
  return json + "\"";
}

// `text`: that of Grammar::Kind::kStructuralTag.
xgrammar::Grammar OfStructuralTag(const std::string& text) {
  std::string tag;
  bool schema = false;
  for (size_t begin = 0; begin <= text.size(); schema = !schema) {
    const size_t end = std::min(text.find(kSchemaBorder, begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    tag += schema ? JsonString(Rewrite(OfSchema(part).ToString())) : part;
    begin = end + 1;
  }
  auto grammar = xgrammar::Grammar::FromStructuralTag(tag);
  if (const auto* error = std::get_if<xgrammar::StructuralTagError>(&grammar)) {
    std::visit([](const auto& why) { Fail(Kind::kRefused, why.what()); }, *error);
  }
  return std::get<xgrammar::Grammar>(std::move(grammar));
}

// Reads parts of a message.
class Reader {
 public:
  Reader(const char* bytes, size_t size) : at_(bytes), end_(bytes + size) {}
  template <typename T>
  T Take() {
    T value = {};
    if (end_ - at_ >= static_cast<ptrdiff_t>(sizeof(T))) memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  bool done() const { return at_ >= end_; }
  std::string TakeBytes(size_t size) {
    std::string bytes(at_, done() ? 0 : std::min(size, static_cast<size_t>(end_ - at_)));
    at_ += bytes.size();
    return bytes;
  }
  std::string TakeText() { return TakeBytes(Take<uint32_t>()); }

 private:
  const char *at_, *end_;
};

// Every byte is a token.
bool SpellsAll(const Vocabulary& vocabulary) {
  std::bitset<256> bytes;
  for (const std::string& text : vocabulary.grammar_texts) {
    if (text.size() == 1) bytes.set(static_cast<unsigned char>(text[0]));
  }
  return bytes.all();
}

// The process of one grammar.
class Serving {
 public:
  Serving(const Vocabulary* vocabulary, const xgrammar::TokenizerInfo& info)
      : vocabulary_(vocabulary), info_(info) {}

  [[noreturn]] void Run(std::string_view grammar) {
    Compile(grammar[0], std::string(grammar.substr(1)));
    std::string packet(kMaxPacketBytes, '\0');
    while (true) {
      const ssize_t size = recv(kGrammarSocket, packet.data(), packet.size(), 0);
      if (size < static_cast<ssize_t>(sizeof(ToGrammar))) _exit(0);
      Reader reader(packet.data(), static_cast<size_t>(size));
      const auto head = reader.Take<ToGrammar>();
      if (head.kind == ToGrammar::Kind::kOpen) {
        Open(head, &reader);
      } else if (head.kind == ToGrammar::Kind::kPush) {
        Push(head, &reader);
      } else if (head.kind == ToGrammar::Kind::kTry) {
        Try(head, &reader);
      } else {
        matchers_.erase(head.matcher);
      }
    }
  }

 private:
  void Compile(char kind, const std::string& text) {
    LimitTime(kCompileMillis);
    xgrammar::GrammarCompiler compiler(info_, /*max_threads=*/1, /*cache_enabled=*/false);
    if (kind == 'j') {
      const xgrammar::Grammar schema = OfSchema(text);
      grammar_ = NeedsRewrite(text) ? compiler.CompileGrammar(Rewrite(schema.ToString()))
                                    : compiler.CompileGrammar(schema);
    } else if (kind == 's') {
      grammar_ = compiler.CompileGrammar(OfStructuralTag(text));
    } else {
      grammar_ = kind == 'r' ? compiler.CompileRegex(text) : compiler.CompileGrammar(text);
    }
    const std::string warning = Logged();
    if (!warning.empty()) Fail(Kind::kRefused, warning);
    int tries = SpellsAll(*vocabulary_) ? 0 : kMaxTries;
    TokenMatcher first(vocabulary_, *grammar_, {});
    if (!first.MayEnd(kind == 'j', &tries)) Fail(Kind::kUnspellable, "");
    LimitTime(0);
    Tell({});
  }

  void Open(const ToGrammar& head, Reader* reader) {
    MatcherStart start;
    start.tell_forced = head.flag != 0;
    for (int i = 0; i < head.count; ++i) start.end_tokens.push_back(reader->Take<int32_t>());
    start.before = reader->TakeText();
    while (!reader->done()) start.after.push_back(reader->TakeText());
    LimitTime(kMaskMillis);
    matchers_[head.matcher] =
        std::make_unique<TokenMatcher>(vocabulary_, *grammar_, std::move(start));
    LimitTime(0);
  }

  void Push(const ToGrammar& head, Reader* reader) {
    TokenMatcher& matcher = *matchers_.at(head.matcher);
    LimitTime(kMaskMillis);
    for (uint16_t i = 0; i < head.count; ++i) {
      if (!matcher.Accept(reader->Take<int32_t>())) {
        LimitTime(0);
        return Tell({Kind::kMismatch, 0, i, head.matcher});
      }
    }
    if (head.flag == 0) return LimitTime(0);
    const TokenMatcher::Step step = matcher.Next();
    LimitTime(0);
    const auto forced = static_cast<uint16_t>(step.forced.size());
    const iovec mask = step.kind == Kind::kChoice ? Bytes(step.mask) : iovec();
    Tell({step.kind, 0, forced, head.matcher}, Bytes(step.forced), mask);
  }

  void Try(const ToGrammar& head, Reader* reader) {
    TokenMatcher& matcher = *matchers_.at(head.matcher);
    const auto first = reader->Take<uint32_t>();
    const TokenMatcher::Place before = matcher.place();
    for (uint16_t i = 0; i < head.count; ++i) {
      LimitTime(kMaskMillis);
      const std::vector<uint32_t> mask = matcher.Try(reader->Take<int32_t>());
      if (mask.empty()) break;
      Tell({Kind::kTried, 0, 0, first + i}, Bytes(mask));
    }
    matcher.GoBackTo(before);
    LimitTime(0);
  }

  const Vocabulary* const vocabulary_;
  const xgrammar::TokenizerInfo& info_;
  std::optional<xgrammar::CompiledGrammar> grammar_;
  std::unordered_map<uint32_t, std::unique_ptr<TokenMatcher>> matchers_;
};

std::string_view Mapped(int fd) {
  struct stat file = {};
  fstat(fd, &file);
  const auto size = static_cast<size_t>(file.st_size);
  const void* const bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (bytes == MAP_FAILED) _exit(1);
  return {static_cast<const char*>(bytes), size};
}

Vocabulary ReadVocabulary() {
  const std::string_view bytes = Mapped(kVocabularyFile);
  Reader reader(bytes.data(), bytes.size());
  Vocabulary vocabulary;
  const auto tokens = reader.Take<uint32_t>();
  for (uint32_t i = 0; i < tokens; ++i) {
    const auto length = reader.Take<uint32_t>();
    std::string text = reader.TakeBytes(length & ~kControl);
    vocabulary.grammar_texts.push_back((length & kControl) != 0 ? "" : text);
    vocabulary.texts.push_back(std::move(text));
  }
  return vocabulary;
}

[[noreturn]] void Main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(memfd_create("log", 0), STDERR_FILENO);
  const Vocabulary vocabulary = ReadVocabulary();
  const xgrammar::TokenizerInfo info(vocabulary.grammar_texts, xgrammar::VocabType::RAW,
                                     static_cast<int>(vocabulary.texts.size()),
                                     std::vector<int32_t>());
  // The model's threads go first: they wait for one another, and a mask may take as long as a run.
  [[maybe_unused]] const int priority = nice(10);
  LimitMemory();
  try {
    Serving(&vocabulary, info).Run(Mapped(kGrammarFile));
  } catch (const std::bad_alloc&) {
    Fail(Kind::kTooHard, "memory");
  } catch (const std::exception& error) {
    Fail(Kind::kRefused, error.what());
  }
}

}  // namespace
}  // namespace rivulet

int main() { rivulet::Main(); }
