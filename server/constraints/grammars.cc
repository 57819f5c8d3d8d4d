// SPDX-License-Identifier: Apache-2.0
#include "server/constraints/grammars.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "model/base/descriptor.h"
#include "model/base/error.h"
#include "model/base/program.h"
#include "model/base/strict_json.h"
#include "model/base/thread.h"
#include "server/base/mutex.h"
#include "server/constraints/messages.h"

namespace rivulet {
namespace {

absl::Status Refused(absl::string_view reason, absl::string_view message) {
  return InvalidField(reason, "constraint", message);
}

absl::Status TooHard(absl::string_view what) {
  return Refused("CONSTRAINT_TOO_HARD",
                 absl::StrCat("The constraint takes too much ", what, "; allowed: ", kCompileMillis,
                              " ms to compile, ", kMaskMillis, " ms for a token, ",
                              kGrammarBytes >> 20, " MiB."));
}

absl::Status Unavailable(absl::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("This server has no constraints: ", why,
                                ". Run deploy/setup.sh --constraints and build it again."),
                   {"CONSTRAINT_UNAVAILABLE", "constraint", {}});
}

// Of the library's message, what is behind its time and its place.
absl::string_view MessageOf(absl::string_view logged) {
  logged = logged.substr(0, logged.find('\n'));
  const size_t place = logged.find(".cc:");
  const size_t message = place == absl::string_view::npos ? place : logged.find(": ", place);
  return message == absl::string_view::npos ? logged : logged.substr(message + 2);
}

template <typename T>
absl::string_view BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

absl::Status ErrorOf(FromGrammar::Kind kind, absl::string_view text) {
  using Kind = FromGrammar::Kind;
  if (kind == Kind::kTooHard) return TooHard(text);
  if (kind == Kind::kUnspellable) {
    return Refused("CONSTRAINT_NOT_SPELLABLE",
                   "The model's vocabulary spells no text of the constraint.");
  }
  return Refused("CONSTRAINT_UNSUPPORTED", Escaped(MessageOf(text)));
}

// A file of `text`; not ok(): errno says why.
Descriptor FileOf(absl::string_view text) {
  Descriptor file(memfd_create("rivulet-grammar", MFD_CLOEXEC));
  return WriteAll(file.get(), text) ? std::move(file) : Descriptor();
}

// The texts of all tokens, as rivulet-grammar reads them.
Descriptor WriteVocabulary(const TextTokenizer& tokenizer, int vocab_size) {
  std::string text;
  const auto append = [&text](uint32_t n) {
    text.append(reinterpret_cast<const char*>(&n), sizeof(n));
  };
  append(static_cast<uint32_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    const absl::string_view token = id < tokenizer.size() ? tokenizer.TokenBytes(id) : "";
    append(static_cast<uint32_t>(token.size()) | (tokenizer.IsSpecial(id) ? kControl : 0));
    absl::StrAppend(&text, token);
  }
  return FileOf(text);
}

// A process of rivulet-grammar; it is killed at the end.
struct Process {
  explicit Process(int fd) : socket(fd) {}
  ~Process() { End(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid = 0;  // 0: none
  Descriptor socket;

  // Returns how it ended.
  int End() {
    int status = 0;
    if (pid == 0) return status;
    kill(pid, SIGKILL);  // a process that has ended keeps its status
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    pid = 0;
    return status;
  }
};

absl::StatusOr<std::unique_ptr<Process>> StartProcess(const std::string& program,
                                                      const Descriptor& vocabulary,
                                                      const Grammar& grammar) {
  if (access(program.c_str(), X_OK) != 0) return Unavailable("it was built without them");
  const char kind = static_cast<char>(grammar.kind);
  const Descriptor text = FileOf(absl::StrCat(absl::string_view(&kind, 1), grammar.text));
  if (!vocabulary.ok() || !text.ok()) return Unavailable(strerror(errno));
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Unavailable(strerror(errno));
  }
  const Descriptor theirs(ends[1]);
  auto process = std::make_unique<Process>(ends[0]);
  const GivenFile given[] = {{theirs.get(), kGrammarSocket},
                             {vocabulary.get(), kVocabularyFile},
                             {text.get(), kGrammarFile}};
  const int error = StartProgram({program.c_str(), nullptr}, given, &process->pid);
  if (error != 0) return process->pid = 0, Unavailable(strerror(error));
  return process;
}

class ProcessMatcher;
class TriedMask;

// One grammar and its process.
class ProcessGrammar final : public ConstraintGrammar,
                             public std::enable_shared_from_this<ProcessGrammar> {
 public:
  ProcessGrammar(const Grammar& of, const std::string& from, std::function<void()> has_output)
      : grammar(of), tenant(from), has_output_(std::move(has_output)) {}

  std::optional<absl::Status> status() const override {
    const MutexLock lock(&mutex_);
    return status_;
  }
  std::unique_ptr<ConstraintMatcher> NewMatcher(const MatcherSpec& spec) override;
  std::vector<std::unique_ptr<TokenMask>> Try(uint32_t matcher, std::span<const int32_t> tokens);

  // For the thread of Grammars.
  void Start(std::unique_ptr<Process> process) {
    const MutexLock lock(&mutex_);
    process_ = std::move(process);
  }
  bool started() const {
    const MutexLock lock(&mutex_);
    return process_ != nullptr;
  }
  // REQUIRES: started().
  pollfd Polled() const {
    const MutexLock lock(&mutex_);
    const int events = POLLIN | (output_.empty() ? 0 : POLLOUT);
    return {process_->socket.get(), static_cast<int16_t>(events), 0};
  }
  void Flush() {
    const MutexLock lock(&mutex_);
    FlushLocked();
  }
  // Takes in what the process has said, by way of `packet`. False: it has ended.
  bool Receive(std::span<char> packet);
  void Fail(const absl::Status& status) {
    const MutexLock lock(&mutex_);
    FailLocked(status);
  }

  // The process has ended.
  void NoteEnd() {
    const MutexLock lock(&mutex_);
    const int end = process_->End();
    const bool timer = WIFSIGNALED(end) && WTERMSIG(end) == SIGPROF;
    FailLocked(TooHard(timer ? "time" : "memory, or crashes the library"));
  }

  // For matchers. An error: the process has ended.
  absl::Status Send(const ToGrammar& head, absl::string_view body) {
    const MutexLock lock(&mutex_);
    if (!status_->ok()) return *status_;
    SendLocked(head, body);
    return absl::OkStatus();
  }
  void Forget(uint32_t matcher) {
    const MutexLock lock(&mutex_);
    matchers_.erase(matcher);
    SendLocked({.kind = ToGrammar::Kind::kClose, .matcher = matcher}, "");
  }
  void ForgetTried(uint32_t mask) {
    const MutexLock lock(&mutex_);
    tried_.erase(mask);
  }

  const Grammar grammar;
  const std::string tenant;

 private:
  void SendLocked(const ToGrammar& head, absl::string_view body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string packet(reinterpret_cast<const char*>(&head), sizeof(head));
    absl::StrAppend(&packet, body);
    output_.push_back(std::move(packet));
    FlushLocked();
    if (!output_.empty()) has_output_();
  }
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!output_.empty()) {
      const std::string& packet = output_.front();
      const ssize_t n =
          send(process_->socket.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      output_.pop_front();  // it is sent, or the process has ended, which Receive finds
    }
  }
  void FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(const FromGrammar& head, absl::string_view body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> has_output_;
  mutable Mutex mutex_;
  std::unique_ptr<Process> process_ ABSL_GUARDED_BY(mutex_);  // null: not started
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> output_ ABSL_GUARDED_BY(mutex_);
  uint32_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;  // of a matcher or a mask
  absl::flat_hash_map<uint32_t, ProcessMatcher*> matchers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, TriedMask*> tried_ ABSL_GUARDED_BY(mutex_);
};

class TriedMask final : public TokenMask {
 public:
  TriedMask(std::shared_ptr<ProcessGrammar> grammar, uint32_t number)
      : grammar_(std::move(grammar)), number_(number) {}
  ~TriedMask() override { grammar_->ForgetTried(number_); }
  std::span<const uint32_t> Bits() const override {
    return known_.load(std::memory_order_acquire) ? bits_ : std::span<const uint32_t>();
  }
  // By the thread of Grammars, once.
  void Set(absl::string_view bytes) {
    bits_.resize(bytes.size() / sizeof(uint32_t));
    memcpy(bits_.data(), bytes.data(), bytes.size());
    known_.store(true, std::memory_order_release);
  }

 private:
  const std::shared_ptr<ProcessGrammar> grammar_;
  const uint32_t number_;
  std::vector<uint32_t> bits_;
  std::atomic<bool> known_{false};
};

class ProcessMatcher final : public ConstraintMatcher {
 public:
  ProcessMatcher(std::shared_ptr<ProcessGrammar> grammar, uint32_t number)
      : grammar_(std::move(grammar)), number_(number) {}
  ~ProcessMatcher() override { grammar_->Forget(number_); }

  const ConstraintStep* step() const override {
    return known_.load(std::memory_order_acquire) ? &step_ : nullptr;
  }
  void DoPush(std::span<const int32_t> tokens) override {
    known_.store(false, std::memory_order_relaxed);
    absl::Status status;
    do {
      const auto part = tokens.first(std::min<size_t>(tokens.size(), kMaxTokensPushed));
      tokens = tokens.subspan(part.size());
      status = grammar_->Send({.kind = ToGrammar::Kind::kPush,
                               .flag = tokens.empty(),
                               .count = static_cast<uint16_t>(part.size()),
                               .matcher = number_},
                              BytesOf(part));
    } while (status.ok() && !tokens.empty());
    if (!status.ok()) Set({.kind = ConstraintStep::Kind::kFailed, .status = status});
  }

  std::vector<std::unique_ptr<TokenMask>> Try(std::span<const int32_t> tokens) override {
    return grammar_->Try(number_, tokens);
  }

  // The answer; by the thread of Grammars.
  void Set(ConstraintStep step) {
    step_ = std::move(step);
    known_.store(true, std::memory_order_release);
  }

 private:
  const std::shared_ptr<ProcessGrammar> grammar_;
  const uint32_t number_;
  ConstraintStep step_;  // its writer changes with known_
  std::atomic<bool> known_{false};
};

std::unique_ptr<ConstraintMatcher> ProcessGrammar::NewMatcher(const MatcherSpec& spec) {
  std::string body(BytesOf(std::span(spec.end_tokens)));
  const auto append = [&body](absl::string_view text) {
    const auto size = static_cast<uint32_t>(text.size());
    body.append(reinterpret_cast<const char*>(&size), sizeof(size));
    absl::StrAppend(&body, text);
  };
  append(spec.before);
  for (const std::string& text : spec.after) append(text);
  const MutexLock lock(&mutex_);
  auto matcher = std::make_unique<ProcessMatcher>(shared_from_this(), ++last_number_);
  matchers_.emplace(last_number_, matcher.get());
  SendLocked({.kind = ToGrammar::Kind::kOpen,
              .flag = spec.forced,
              .count = static_cast<uint16_t>(spec.end_tokens.size()),
              .matcher = last_number_},
             body);
  return matcher;
}

std::vector<std::unique_ptr<TokenMask>> ProcessGrammar::Try(uint32_t matcher,
                                                            std::span<const int32_t> tokens) {
  std::vector<std::unique_ptr<TokenMask>> masks;
  const MutexLock lock(&mutex_);
  const uint32_t first = last_number_ + 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto mask = std::make_unique<TriedMask>(shared_from_this(), ++last_number_);
    tried_.emplace(last_number_, mask.get());
    masks.push_back(std::move(mask));
  }
  SendLocked({.kind = ToGrammar::Kind::kTry,
              .count = static_cast<uint16_t>(tokens.size()),
              .matcher = matcher},
             absl::StrCat(BytesOf(std::span(&first, 1)), BytesOf(tokens)));
  return masks;
}

bool ProcessGrammar::Receive(std::span<char> packet) {
  while (true) {
    const ssize_t n = recv(Polled().fd, packet.data(), packet.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n < static_cast<ssize_t>(sizeof(FromGrammar))) return false;
    FromGrammar head;
    memcpy(&head, packet.data(), sizeof(head));
    const MutexLock lock(&mutex_);
    Take(head, {packet.data() + sizeof(head), static_cast<size_t>(n) - sizeof(head)});
  }
}

void ProcessGrammar::Take(const FromGrammar& head, absl::string_view body) {
  using Kind = FromGrammar::Kind;
  if (head.kind == Kind::kCompiled) {
    status_ = absl::OkStatus();
    return;
  }
  if (head.kind < Kind::kChoice) {  // the process ends now
    FailLocked(ErrorOf(head.kind, body));
    return;
  }
  if (head.kind == Kind::kTried) {
    const auto mask = tried_.find(head.matcher);
    if (mask != tried_.end()) mask->second->Set(body);
    return;
  }
  const auto found = matchers_.find(head.matcher);
  // After a mismatch it answers for the other parts of a push, too.
  if (found == matchers_.end() || found->second->step() != nullptr) return;
  ConstraintStep step;
  if (head.kind == Kind::kMismatch) {
    step = {.kind = ConstraintStep::Kind::kFailed,
            .status = Refused("CONSTRAINT_MISMATCH",
                              absl::StrCat("Token ", head.count,
                                           " of those that were written "
                                           "since the constraint's begin cannot follow."))};
  } else {
    const size_t forced = head.count * sizeof(int32_t);
    step.kind = static_cast<ConstraintStep::Kind>(int(head.kind) - int(Kind::kChoice));
    step.forced.resize(head.count);
    step.mask.resize((body.size() - forced) / sizeof(uint32_t));
    std::copy_n(body.data(), forced, reinterpret_cast<char*>(step.forced.data()));
    std::copy_n(body.data() + forced, body.size() - forced,
                reinterpret_cast<char*>(step.mask.data()));
  }
  found->second->Set(std::move(step));
}

void ProcessGrammar::FailLocked(const absl::Status& status) {
  if (status_ && !status_->ok()) return;
  status_ = status;
  for (const auto& [number, matcher] : matchers_) {
    if (matcher->step() == nullptr) {
      matcher->Set({.kind = ConstraintStep::Kind::kFailed, .status = status});
    }
  }
}

class Grammars final : public ConstraintCompiler {
 public:
  Grammars(const TextTokenizer& tokenizer, int vocab_size, const GrammarsOptions& options)
      : options_(options),
        tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        wake_up_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this] { Run(); }) {}
  ~Grammars() override {
    stop_ = true;
    WakeThread();
    thread_.join();
  }

  void SetWake(std::function<void()> wake) override {
    const MutexLock lock(&mutex_);
    wake_ = std::move(wake);
  }

  std::shared_ptr<ConstraintGrammar> Compile(const Grammar& grammar,
                                             const std::string& tenant) override {
    const MutexLock lock(&mutex_);
    // A failed one stays in known_ until the thread has come round.
    const auto same = [&](const auto& other) {
      return other->grammar == grammar && other->status().value_or(absl::OkStatus()).ok();
    };
    auto found = std::find_if(known_.begin(), known_.end(), same);
    if (found == known_.end()) {
      found = known_.insert(
          found, std::make_shared<ProcessGrammar>(grammar, tenant, [this] { WakeThread(); }));
      WakeThread();
    }
    std::rotate(known_.begin(), found, found + 1);  // the one used last is the first
    return known_.front();
  }

 private:
  using Known = std::vector<std::shared_ptr<ProcessGrammar>>;

  void WakeThread() const {
    const uint64_t one = 1;
    if (write(wake_up_.get(), &one, sizeof(one)) < 0) return;  // it is awake
  }

  void Run() {
    NameThread("grammars");
    std::vector<pollfd> polled;
    std::vector<char> packet(kMaxPacketBytes);
    for (Known started = Started(); !stop_; started = Started()) {
      polled = {{wake_up_.get(), POLLIN, 0}};
      for (const auto& grammar : started) polled.push_back(grammar->Polled());
      // Whether somebody still waits for what is being compiled; whether a grammar is used no more,
      // and another can start.
      poll(polled.data(), polled.size(), crowded_ ? 100 : compiling_ > 0 ? 1000 : -1);
      uint64_t count = 0;
      if (read(wake_up_.get(), &count, sizeof(count)) < 0) count = 0;
      bool news = false;
      for (size_t i = 0; i < started.size(); ++i) {
        const int16_t events = polled[i + 1].revents;
        if ((events & POLLOUT) != 0) started[i]->Flush();
        if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
        news = true;
        if (!started[i]->Receive(packet)) started[i]->NoteEnd();
      }
      started.clear();  // else all of them seem to be in use
      const MutexLock lock(&mutex_);
      if (news && wake_) wake_();
    }
  }

  // Forgets and starts grammars. Returns those whose processes run.
  Known Started() {
    size_t processes = ForgetUnused();
    crowded_ = false;
    while (compiling_ < options_.max_compiling) {
      const std::shared_ptr<ProcessGrammar> next = NextToCompile();
      crowded_ = next != nullptr && processes >= options_.max_processes;
      if (next == nullptr || crowded_) break;
      last_tenant_ = next->tenant;
      // Without the lock, for which the engine would wait.
      if (!vocabulary_.ok()) vocabulary_ = WriteVocabulary(tokenizer_, vocab_size_);
      auto process = StartProcess(options_.program, vocabulary_, next->grammar);
      if (process.ok()) {
        next->Start(*std::move(process));
        ++compiling_;
        ++processes;
        continue;
      }
      next->Fail(process.status());
      const MutexLock lock(&mutex_);
      if (wake_) wake_();
    }
    const MutexLock lock(&mutex_);
    Known started;
    for (const auto& grammar : known_) {
      if (grammar->started()) started.push_back(grammar);
    }
    return started;
  }

  // Forgets grammars that have failed, that nobody waits for, and that nobody has used for long.
  // Counts those that are being compiled. Returns the number of processes.
  size_t ForgetUnused() {
    Known forgotten;  // ends processes without the lock, for which the engine would wait
    const MutexLock lock(&mutex_);
    const size_t max_kept = crowded_ ? 0 : options_.max_kept;
    size_t kept = 0, processes = 0;
    compiling_ = 0;
    for (auto& grammar : known_) {
      const std::optional<absl::Status> status = grammar->status();
      const bool unused = grammar.use_count() == 1;
      const bool of_use = status ? status->ok() && (!unused || ++kept <= max_kept) : !unused;
      if (!of_use) {
        forgotten.push_back(std::move(grammar));
      } else if (grammar->started()) {
        ++processes;
        compiling_ += !status;
      }
    }
    std::erase(known_, nullptr);
    return processes;
  }

  // Of the grammars that wait the oldest one of the tenant whose turn it is; null: none waits.
  std::shared_ptr<ProcessGrammar> NextToCompile() const {
    const MutexLock lock(&mutex_);
    std::shared_ptr<ProcessGrammar> first, behind;  // by tenant; behind the last one's
    for (const auto& grammar : known_) {
      if (grammar->status() || grammar->started()) continue;
      const auto take = [&](std::shared_ptr<ProcessGrammar>* best) {
        if (*best == nullptr || grammar->tenant <= (*best)->tenant) *best = grammar;
      };
      take(&first);
      if (grammar->tenant > last_tenant_) take(&behind);
    }
    return behind != nullptr ? behind : first;
  }

  const GrammarsOptions options_;
  const TextTokenizer& tokenizer_;
  const int vocab_size_;
  const Descriptor wake_up_;
  std::atomic<bool> stop_{false};
  mutable Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  Known known_ ABSL_GUARDED_BY(mutex_);  // the one used last is the first
  // Of the thread.
  Descriptor vocabulary_;  // written for the first grammar
  int compiling_ = 0;
  bool crowded_ = false;  // a grammar waits for the end of another one's process
  std::string last_tenant_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

std::shared_ptr<ConstraintCompiler> CreateGrammars(const TextTokenizer& tokenizer, int vocab_size,
                                                   const GrammarsOptions& options) {
  GrammarsOptions chosen = options;
  if (chosen.program.empty()) {
    chosen.program = ProgramFile().replace_filename("rivulet-grammar");
  }
  return std::make_shared<Grammars>(tokenizer, vocab_size, chosen);
}

}  // namespace rivulet
