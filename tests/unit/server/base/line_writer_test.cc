// SPDX-License-Identifier: Apache-2.0
#include "server/base/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

// A pipe that takes one page at a time; its ends are closed at the end.
class Pipe {
 public:
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = ends[0];
    writer_ = ends[1];
    EXPECT_GE(fcntl(writer_, F_SETPIPE_SZ, PIPE_BUF), PIPE_BUF);
  }
  ~Pipe() {
    CloseWriter();
    close(reader_);
  }
  int writer() const { return writer_; }
  void CloseWriter() {
    if (writer_ >= 0) close(std::exchange(writer_, -1));
  }
  // What comes with one read; "" at the end.
  std::string Read() {
    std::string text(PIPE_BUF, '\0');
    const ssize_t got = read(reader_, text.data(), text.size());
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }
  std::string ReadAll() {
    std::string all;
    for (std::string text; !(text = Read()).empty();) all += text;
    return all;
  }

 private:
  int reader_ = -1, writer_ = -1;
};

const auto kNever = [] { return false; };

TEST(WriteWhileTest, WritesWholeLinesAsFarAsTheyGo) {
  Pipe pipe;
  const std::string line = std::string(999, 'x') + "\n";
  std::string text;
  for (int i = 0; i < 7; ++i) text += line;
  EXPECT_EQ(WriteWhile(pipe.writer(), text, kNever), 4 * line.size()) << "a page holds four";
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(WriteWhile(pipe.writer(), text, kNever), 0u);
  EXPECT_EQ(pipe.Read().size(), 4 * line.size());
  int asked = 0;
  EXPECT_EQ(WriteWhile(pipe.writer(), text, [&] { return ++asked < 3; }), 4 * line.size());
  EXPECT_EQ(asked, 3);
}

TEST(WriteWhileTest, LinesThatAreLongerThanAPageArrive) {
  Pipe pipe;
  const std::string text = std::string(3 * PIPE_BUF, 'x') + "\nshort\n";
  std::thread writer([&] {
    EXPECT_EQ(WriteWhile(pipe.writer(), text, [] { return true; }), text.size());
    pipe.CloseWriter();
  });
  EXPECT_EQ(pipe.ReadAll(), text);
  writer.join();
}

TEST(WriteWhileTest, AnErrorEndsIt) {
  EXPECT_EQ(WriteWhile(1 << 20, "line\n", [] { return true; }), 0u);
  EXPECT_EQ(errno, EBADF);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(WriteWhile(full, "line\n", [] { return true; }), 0u);
  EXPECT_EQ(errno, ENOSPC);
  close(full);
}

// What a sink was told, and a gate behind which it takes nothing.
struct Seen {
  Mutex mutex;
  CondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = true;
  bool deaf ABSL_GUARDED_BY(mutex) = false;  // asks no go_on, as a file system that hangs
  int waiting ABSL_GUARDED_BY(mutex) = 0;    // writes before the gate
  std::string text ABSL_GUARDED_BY(mutex);
  std::vector<std::string> told ABSL_GUARDED_BY(mutex);

  void Tell(const std::string& what) {
    MutexLock lock(&mutex);
    told.push_back(what);
    changed.NotifyAll();
  }
  void SetOpen(bool value) {
    MutexLock lock(&mutex);
    open = value;
    changed.NotifyAll();
  }
  void AwaitWrite() {
    MutexLock lock(&mutex);
    while (waiting == 0) changed.Wait(&mutex);
  }
  void AwaitTold(size_t count) {
    MutexLock lock(&mutex);
    while (told.size() < count) changed.Wait(&mutex);
  }
};

class FakeSink final : public LineSink {
 public:
  explicit FakeSink(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}
  int64_t Write(absl::string_view lines, absl::FunctionRef<bool()> go_on) override {
    MutexLock lock(&seen_->mutex);
    ++seen_->waiting;
    seen_->changed.NotifyAll();
    while (!seen_->open && (seen_->deaf || go_on())) {
      seen_->changed.WaitFor(&seen_->mutex, absl::Milliseconds(1));
    }
    --seen_->waiting;
    errno = EAGAIN;
    if (!seen_->open) return 0;
    seen_->text += std::string(lines);
    return std::count(lines.begin(), lines.end(), '\n');
  }
  void Behind() override { seen_->Tell("behind"); }
  void Failed(int error) override { seen_->Tell(absl::StrCat("failed ", error == EAGAIN)); }
  void Recovered(int64_t lost) override { seen_->Tell(absl::StrCat("recovered ", lost)); }
  void Reopen() override { seen_->Tell("reopened"); }

 private:
  const std::shared_ptr<Seen> seen_;
};

class LineWriterTest : public ::testing::Test {
 protected:
  std::unique_ptr<LineWriter> Open(size_t max_waiting = 8192) {
    return std::make_unique<LineWriter>(LineWriterOptions{"test", max_waiting, absl::Duration()},
                                        std::make_unique<FakeSink>(seen_));
  }
  static void Add(LineWriter* writer, int from, int to) {
    for (int i = from; i < to; ++i) {
      writer->Add([i](std::string* text) { absl::StrAppend(text, i, "\n"); });
    }
  }
  std::string text() {
    MutexLock lock(&seen_->mutex);
    return seen_->text;
  }
  std::vector<std::string> told() {
    MutexLock lock(&seen_->mutex);
    return seen_->told;
  }

  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
};

using Told = std::vector<std::string>;

TEST_F(LineWriterTest, WhatWasAddedIsWrittenInOrderBeforeTheEnd) {
  const auto writer = Open();
  Add(writer.get(), 0, 3);
  writer->Stop(absl::InfiniteFuture());
  EXPECT_EQ(text(), "0\n1\n2\n");
  Add(writer.get(), 3, 4);
  EXPECT_EQ(writer->counts().written, 3);
  EXPECT_EQ(writer->counts().dropped, 1) << "after the end";
  EXPECT_EQ(told(), Told());
}

TEST_F(LineWriterTest, ASinkThatTakesNothingCostsLinesAndIsTold) {
  seen_->SetOpen(false);
  const auto writer = Open(5);
  Add(writer.get(), 0, 1);
  seen_->AwaitWrite();
  Add(writer.get(), 1, 6);
  EXPECT_EQ(told(), Told());
  Add(writer.get(), 6, 100);
  EXPECT_EQ(told(), Told({"behind"})) << "at once, and once";
  EXPECT_EQ(writer->counts().dropped, 94);
  seen_->SetOpen(true);
  seen_->AwaitTold(2);
  Add(writer.get(), 100, 101);
  writer->Stop(absl::InfiniteFuture());
  EXPECT_EQ(told(), Told({"behind", "recovered 94"}));
  EXPECT_EQ(text(), "0\n1\n2\n3\n4\n5\n100\n");
  EXPECT_EQ(writer->counts().written, 7);
  EXPECT_EQ(writer->counts().failed, 0);
}

TEST_F(LineWriterTest, TheEndDoesNotWaitForASinkThatTakesNothing) {
  seen_->SetOpen(false);
  const auto writer = Open();
  Add(writer.get(), 0, 1);
  seen_->AwaitWrite();
  Add(writer.get(), 1, 4);
  writer->Stop(absl::Now());  // else for ever
  EXPECT_EQ(writer->counts().failed, 4);
  EXPECT_EQ(told(), Told({"failed 1"}));
}

TEST_F(LineWriterTest, TheEndDoesNotWaitForASinkThatHangs) {
  {
    MutexLock lock(&seen_->mutex);
    seen_->open = false;
    seen_->deaf = true;
  }
  auto writer = Open();
  Add(writer.get(), 0, 1);
  seen_->AwaitWrite();
  writer->Stop(absl::Now());  // else for ever
  writer.reset();
  seen_->SetOpen(true);
}

TEST_F(LineWriterTest, AReopenEndsAWriteThatWaits) {
  seen_->SetOpen(false);
  const auto writer = Open();
  Add(writer.get(), 0, 1);
  seen_->AwaitWrite();
  writer->Reopen();
  seen_->AwaitTold(2);
  seen_->SetOpen(true);
  Add(writer.get(), 1, 2);
  writer->Stop(absl::InfiniteFuture());
  EXPECT_EQ(told(), Told({"failed 1", "reopened", "recovered 1"}));
  EXPECT_EQ(text(), "1\n");
}

}  // namespace
}  // namespace rivulet
