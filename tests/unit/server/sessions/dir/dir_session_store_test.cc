// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/dir/dir_session_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "tests/support/random_model.h"
#include "tests/unit/server/sessions/session_store_contract.h"

extern char** environ;

namespace rivulet {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = StoreAnswer::Kind;

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

// Tests stop the thread of a store, for as long as they like.
std::unique_ptr<SessionStore> OpenStore(const std::string& path, DirStoreOptions options = {}) {
  options.call_time = absl::Hours(1);
  auto store = OpenDirSessionStore(path, std::move(options));
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Short segments and sweeps all the time: the log moves on, and files go as soon as they may. With
// very short ones, a thread that gets no core for a while cannot tell what became of its write.
constexpr int kShort = 16;  // where several threads write
DirStoreOptions Busy(int entries_per_segment = 4) {
  DirStoreOptions options;
  options.entries_per_segment = entries_per_segment;
  options.sweep_every = absl::Milliseconds(1);
  options.leftover_age = absl::ZeroDuration();
  return options;
}

class DirBacking : public StoreBacking {
 public:
  explicit DirBacking(DirStoreOptions options) : options_(std::move(options)) {}
  std::unique_ptr<SessionStore> Open() override { return OpenStore(path_, options_); }
  // As the header says.
  void Empty() override {
    fs::rename(path_, root_.File("old"));
    fs::remove_all(root_.File("old"));
  }

 protected:
  DirStoreOptions options_;

 private:
  const testing::TempDir root_;
  const std::string path_ = root_.File("store");
};

// What expires is gone before it is swept.
std::unique_ptr<StoreBacking> WithoutSweeps() {
  DirStoreOptions options;
  options.sweep_every = absl::Hours(1);
  return std::make_unique<DirBacking>(options);
}

// By a clock that goes on when a test says so, so that many things expire together. The chunks of a
// write are no leftovers before they are a second old: a writer that gets no core for a while would
// write them again for each sweep, without end.
class BusyBacking final : public DirBacking {
 public:
  BusyBacking() : DirBacking(Busy(kShort)) {
    options_.leftover_age = absl::Seconds(1);
    options_.clock = [this] { return absl::FromUnixMillis(now_ms_); };
  }
  void Pass(absl::Duration time) override { now_ms_ += absl::ToInt64Milliseconds(time); }

 private:
  std::atomic<int64_t> now_ms_ = 1'800'000'000'000;
};

INSTANTIATE_TEST_SUITE_P(
    Directory, SessionStoreContract,
    ::testing::Values(StoreCase{"Directory", WithoutSweeps},
                      StoreCase{"BusyDirectory", [] { return std::make_unique<BusyBacking>(); }}),
    NameOfCase);

// Stops a store's thread before one step of its choice. Thread: any.
class Stop {
 public:
  explicit Stop(std::string step) : step_(std::move(step)) {}
  // For DirStoreOptions.
  std::function<int(absl::string_view)> Hook() {
    return [this](absl::string_view step) {
      if (step == step_ && --left_ == 0) {
        stopped_.set_value();
        go_.get_future().wait();
      }
      return 0;
    };
  }
  // At the `step`th from now on.
  void Arm(int step = 1) { left_ = step; }
  void AwaitStopped() { stopped_.get_future().wait(); }
  void Go() { go_.set_value(); }

 private:
  const std::string step_;
  std::atomic<int> left_ = 0;
  std::promise<void> stopped_, go_;
};

struct DirSessionStoreTest : public ::testing::Test {
  const testing::TempDir root;
  const std::string path = root.File("store");
  const std::string inside = path + "/sessions-1";

  static StoreWrite WithChunk(StoreWrite write, const std::string& id,
                              const std::string& bytes = "tokens") {
    write.chunks.push_back({id, bytes});
    return write;
  }
  std::vector<std::string> Files(const std::string& folder) const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(inside + "/" + folder)) {
      files.push_back(entry.path());
    }
    return files;
  }
  std::string OnlyFile(const std::string& folder) const {
    const std::vector<std::string> files = Files(folder);
    EXPECT_EQ(files.size(), 1u) << folder;
    return files.empty() ? "" : files[0];
  }
  static void Done(SessionStore& store, StoreWrite write) {
    const auto answer = WriteNow(store, std::move(write));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->kind, Kind::kDone);
  }
  static std::string Claim(SessionStore& store, int session) {
    const auto answer = ReadNow(store, SessionName(session));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->found.claim : "";
  }
  static void Await(const std::function<bool()>& condition) {
    for (int i = 0; i < 12000; ++i) {
      if (condition()) return;
      absl::SleepFor(absl::Milliseconds(5));
    }
    FAIL() << "what is awaited does not happen";
  }
};

void Overwrite(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

std::string Contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(DirSessionStoreTest, FilesAreForTheOwnerAlone) {
  const auto store = OpenStore(path);
  Done(*store, WithChunk(MakeWrite(1, 0, 1), "c1"));
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    struct stat info = {};
    ASSERT_EQ(lstat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, entry.is_directory() ? 0700u : 0600u) << entry.path();
  }
}

TEST_F(DirSessionStoreTest, WhatCannotBeItsDirectoryIsRefusedByName) {
  Overwrite(path, "a file");
  for (const std::string& bad :
       {path, path + "/below", root.File("missing/below"), std::string()}) {
    const auto store = OpenDirSessionStore(bad);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(GetErrorDetail(store.status()).reason, "CONFIG_INVALID");
    EXPECT_EQ(GetErrorDetail(store.status()).field, "session-store");
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(bad));
  }
}

// Everything is there for who opens the store later, also where most of the log was removed.
TEST_F(DirSessionStoreTest, ALongLogIsCutAndNothingIsLost) {
  auto store = OpenStore(path, Busy());
  StoreWrite first = WithChunk(MakeWrite(1, 0, 1, "idle"), "c1", "idle tokens");
  first.sets = {{"set", 10}};
  first.record.lease = absl::Hours(1);
  Done(*store, first);
  Done(*store, WithChunk(WithChunk(MakeWrite(2, 0, 1), "c2"), "c3", "unused"));
  for (int i = 1; i < 60; ++i) {
    StoreWrite write = MakeWrite(2, i, i + 1);
    write.kept_chunks = {"c2"};
    Done(*store, write);
  }
  Await([&] { return Files("log").size() <= 4 && Files("records").size() == 2; });
  EXPECT_EQ(Files("chunks").size(), 3u) << "what no record uses has not expired";
  // Nothing is left to do: the store adds no entries of its own.
  const auto entries = [&] {
    std::set<std::string> names;
    std::error_code gone;  // a segment, while it is listed
    for (fs::recursive_directory_iterator file(inside + "/log", gone), end; file != end;
         file.increment(gone)) {
      names.insert(file->path());
    }
    return names;
  };
  Await([&] {
    const std::set<std::string> before = entries();
    for (int i = 0; i < 20; ++i) (void)Claim(*store, 1);  // a sweep is between any two
    absl::SleepFor(absl::Milliseconds(20));
    return entries() == before;
  });
  for (int open = 0; open < 2; ++open) {
    const auto answer = ReadNow(*store, SessionName(1));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->found.claim, ClaimOf(1));
    EXPECT_EQ(answer->found.bytes, "idle");
    EXPECT_GT(answer->found.lease, absl::ZeroDuration());
    EXPECT_EQ(Claim(*store, 2), ClaimOf(60));
    EXPECT_EQ(ListNow(*store, "set")->size(), 1u);
    EXPECT_EQ(*ReadChunksNow(*store, {"c1", "c2", "c3"}),
              (std::vector<std::string>{"idle tokens", "tokens", "unused"}));
    store = OpenStore(path);
  }
}

TEST_F(DirSessionStoreTest, WhatExpiredLeavesNoFiles) {
  const auto store = OpenStore(path, Busy());
  for (int i = 1; i <= 10; ++i) {
    StoreWrite write = WithChunk(MakeWrite(i, 0, 1), absl::StrCat("c", i));
    write.expiry = absl::Milliseconds(1 + i);
    Done(*store, write);
  }
  Await([&] { return Files("records").empty() && Files("chunks").empty(); });
  Done(*store, MakeWrite(1, 0, 1));
}

TEST_F(DirSessionStoreTest, WhatNoSessionUsesCountsAlsoWhereMostOfTheLogWasRemoved) {
  auto store = OpenStore(path, Busy());
  const StoreAccount account = {"tenant", 10'000};
  StoreWrite write = WithChunk(MakeWrite(1, 0, 1), "c1", std::string(5000, 'c'));
  write.account = account;
  Done(*store, write);
  write = MakeWrite(1, 1, 2);  // closed, and a fork may use its chunk
  write.account = account;
  write.leaves_sets = true;
  write.expiry = absl::Minutes(1);
  Done(*store, write);
  for (int i = 0; i < 30; ++i) Done(*store, MakeWrite(2, i, i + 1));
  Await([&] { return !fs::exists(inside + "/log/0000000000000000"); });
  store = OpenStore(path, Busy());
  write = WithChunk(MakeWrite(3, 0, 1), "c2", std::string(5000, 'c'));
  write.account = account;
  const auto answer = WriteNow(*store, write);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->kind, Kind::kNoBytes);
}

TEST_F(DirSessionStoreTest, LeftoversOfDeadProcessesAreRemovedWhenTheyAreOld) {
  auto store = OpenStore(path);
  Done(*store, WithChunk(MakeWrite(1, 0, 1), "c1"));
  store = nullptr;
  const std::vector<std::string> files = {inside + "/records/00ab.0123456789abcdef",
                                          inside + "/records/.0123456789abcdef",
                                          inside + "/chunks/c9.0123456789abcdef"};
  const std::string unfinished = path + "/new-0123456789abcdef";
  const auto make = [&] {
    for (const std::string& file : files) Overwrite(file, "left");
    fs::create_directories(unfinished + "/log");
  };
  DirStoreOptions options;
  options.sweep_every = absl::Milliseconds(1);
  make();
  fs::create_directories(path + "/dead-new-0123456789abcdee/log");
  store = OpenStore(path, options);
  Await([&] { return !fs::exists(path + "/dead-new-0123456789abcdee"); });
  for (int i = 0; i < 3; ++i) Done(*store, MakeWrite(2, i, i + 1));  // sweeps are between them
  store = nullptr;
  for (const std::string& file : files) EXPECT_TRUE(fs::exists(file)) << file;
  EXPECT_TRUE(fs::exists(unfinished));

  const auto old = fs::file_time_type::clock::now() - std::chrono::minutes(11);
  for (const std::string& file : files) fs::last_write_time(file, old);
  fs::last_write_time(unfinished, old);
  store = OpenStore(path, options);
  Await([&] {
    return Files("records").size() == 2 && Files("chunks").size() == 1 && !fs::exists(unfinished);
  });
  EXPECT_EQ(*ReadChunksNow(*store, {"c1"}), (std::vector<std::string>{"tokens"}));
}

// Each way to damage a file.
const std::function<std::string(std::string)> kDamages[] = {
    [](std::string) { return ""; },
    [](std::string bytes) { return bytes.substr(0, bytes.size() / 2); },
    [](std::string bytes) { return bytes.substr(0, bytes.size() - 1); },
    [](std::string bytes) { return bytes + "x"; },
    [](std::string bytes) {
      bytes[bytes.size() / 2] ^= 1;
      return bytes;
    },
    [](std::string bytes) { return std::string(bytes.size(), '\0'); },
};

TEST_F(DirSessionStoreTest, ADamagedRecordIsDataLossForItsSessionAlone) {
  for (const auto& damage : kDamages) {
    auto store = OpenStore(path);
    Done(*store, MakeWrite(1, 0, 1, "old"));
    Done(*store, MakeWrite(1, 1, 2, "new"));
    const std::string file = OnlyFile("records");
    Done(*store, MakeWrite(2, 0, 1));
    Overwrite(file, damage(Contents(file)));
    EXPECT_EQ(ReadNow(*store, SessionName(1)).status().code(), kDataLoss);
    EXPECT_EQ(Claim(*store, 2), ClaimOf(1));
    store = OpenStore(path, Busy());
    EXPECT_EQ(ReadNow(*store, SessionName(1)).status().code(), kDataLoss);
    EXPECT_EQ(WriteNow(*store, MakeWrite(1, 1, 3)).status().code(), kDataLoss);
    EXPECT_EQ(WriteNow(*store, MakeWrite(1, 0, 3)).status().code(), kDataLoss);
    for (int i = 1; i < 30; ++i) Done(*store, MakeWrite(2, i, i + 1));
    EXPECT_EQ(ReadNow(*store, SessionName(1)).status().code(), kDataLoss) << "it moves as it is";
    store = nullptr;
    fs::remove_all(path);
  }
}

TEST_F(DirSessionStoreTest, WhoKnowsTheClaimReplacesADamagedRecord) {
  const auto store = OpenStore(path);
  Done(*store, MakeWrite(1, 0, 1));
  Overwrite(OnlyFile("records"), "");
  Done(*store, MakeWrite(1, 1, 2));
  EXPECT_EQ(Claim(*store, 1), ClaimOf(2));
  EXPECT_EQ(Claim(*OpenStore(path), 1), ClaimOf(2));
}

// The folder of these names is not synced: a crash of the machine may take them.
TEST_F(DirSessionStoreTest, ARecordIsReadWithoutItsNameInRecords) {
  auto store = OpenStore(path);
  Done(*store, MakeWrite(1, 0, 1));
  fs::remove(OnlyFile("records"));
  EXPECT_EQ(Claim(*store, 1), ClaimOf(1));
  store = OpenStore(path);
  EXPECT_EQ(Claim(*store, 1), ClaimOf(1));
  Done(*store, MakeWrite(1, 1, 2));
}

TEST_F(DirSessionStoreTest, ADamagedChunkIsDataLossForWhoReadsIt) {
  const auto store = OpenStore(path);
  Done(*store, WithChunk(MakeWrite(1, 0, 1), "c1"));
  const std::string file = OnlyFile("chunks"), whole = Contents(file);
  Done(*store, WithChunk(MakeWrite(2, 0, 1), "c2"));
  for (const auto& damage : kDamages) {
    Overwrite(file, damage(whole));
    EXPECT_EQ(ReadChunksNow(*store, {"c2", "c1"}).status().code(), kDataLoss);
    EXPECT_EQ(*ReadChunksNow(*store, {"c2"}), (std::vector<std::string>{"tokens"}));
  }
  fs::remove(file);
  EXPECT_EQ(ReadChunksNow(*store, {"c1"}).status().code(), kDataLoss) << "it is missing";
  fs::create_directory(file);
  EXPECT_EQ(ReadChunksNow(*store, {"c1"}).status().code(), kDataLoss) << "it is no file";
  fs::remove(file);
  fs::copy_file(Files("chunks")[0], file);
  EXPECT_EQ(ReadChunksNow(*store, {"c1"}).status().code(), kDataLoss) << "it is another one";
}

TEST_F(DirSessionStoreTest, AMissingPartOfTheLogIsDataLoss) {
  DirStoreOptions options;
  options.entries_per_segment = 2;
  auto store = OpenStore(path, options);
  for (int i = 0; i < 5; ++i) Done(*store, MakeWrite(1, i, i + 1));
  store = nullptr;
  const std::string segment = inside + "/log/0000000000000001/";
  for (const char* entry : {"0000000000000003", "0000000000000002"}) {
    fs::remove(segment + entry);
    EXPECT_EQ(OpenDirSessionStore(path).status().code(), kDataLoss) << entry;
  }
  fs::remove(segment);
  EXPECT_EQ(OpenDirSessionStore(path).status().code(), kDataLoss) << "a segment";
  Overwrite(inside + "/id", "damaged");
  EXPECT_EQ(OpenDirSessionStore(path).status().code(), kDataLoss) << "id";
}

// A writer is stopped between what it read and its link, while another one takes the number. Then
// it must find that it has lost, whatever became of the number meanwhile.
TEST_F(DirSessionStoreTest, AStoppedWriterHoldsUpNobodyAndLoses) {
  for (const int writes : {1, 2, 3, 4, 5, 6, 30}) {
    const std::string directory = absl::StrCat(path, writes);
    Stop stop("link");
    DirStoreOptions options;
    options.entries_per_segment = 4;
    options.before_step = stop.Hook();
    const auto other = OpenStore(directory, Busy());
    const auto stopped = OpenStore(directory, options);
    Done(*other, MakeWrite(1, 0, 1));
    stop.Arm();
    auto late = StartWrite(*stopped, WithChunk(MakeWrite(1, 1, 1000), "bad"));
    stop.AwaitStopped();
    for (int i = 1; i <= writes; ++i) Done(*other, MakeWrite(1, i, i + 1));
    stop.Go();
    const auto answer = late.get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->kind, Kind::kClaimMismatch);
    EXPECT_EQ(answer->found.claim, ClaimOf(writes + 1));
    EXPECT_EQ(Claim(*other, 1), ClaimOf(writes + 1));
    EXPECT_EQ(Claim(*OpenStore(directory), 1), ClaimOf(writes + 1));
    EXPECT_EQ(*ReadChunksNow(*other, {"bad"}), (std::vector<std::string>{""}));
  }
}

// The disk hangs in a write. Others wait for it, until one finds no room to wait.
TEST_F(DirSessionStoreTest, ADiskThatHangsHoldsUpNeitherCallsNorTheEnd) {
  auto disk = std::make_shared<Stop>("sync file");  // a thread that outlives the test has it, too
  DirStoreOptions options;
  options.call_time = absl::Seconds(3);  // a busy machine makes all calls within that
  options.before_step = [disk, hook = disk->Hook()](absl::string_view step) { return hook(step); };
  auto store = *OpenDirSessionStore(path, options);
  Done(*store, MakeWrite(1, 0, 1));
  std::mutex mutex;
  std::vector<std::string> refusals;
  const auto refused = [&](const absl::StatusOr<StoreAnswer>& answer) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(absl::IsUnavailable(answer.status())) << answer.status();
    refusals.emplace_back(answer.status().message());
  };
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return refusals.size();
  };
  disk->Arm();
  store->Write(MakeWrite(1, 1, 2), refused);
  disk->AwaitStopped();
  constexpr size_t kRoom = 4096;
  for (size_t i = 0; i <= kRoom; ++i) store->Read(SessionName(1), refused);
  Await([&] { return count() == kRoom + 2; });
  EXPECT_THAT(refusals.front(), HasSubstr("too many calls"));
  EXPECT_THAT(refusals.back(), HasSubstr("no answer in time"));
  disk->Go();
  Await([&] { return ReadNow(*store, SessionName(1)).ok(); });
  EXPECT_EQ(Claim(*store, 1), ClaimOf(1)) << "a write that was refused does not happen later";

  disk = std::make_shared<Stop>("link");
  options.call_time = absl::Seconds(1);
  options.before_step = [disk, hook = disk->Hook()](absl::string_view step) { return hook(step); };
  store = *OpenDirSessionStore(path, options);
  disk->Arm();
  store->Write(MakeWrite(1, 1, 3), refused);
  disk->AwaitStopped();
  store->Read(SessionName(1), refused);
  store = nullptr;
  EXPECT_EQ(count(), kRoom + 4);
}

TEST_F(DirSessionStoreTest, AWriterThatIsStoppedAfterItsLinkHasWon) {
  Stop stop("sync folder");
  DirStoreOptions options;
  options.entries_per_segment = 4;
  options.before_step = stop.Hook();
  const auto stopped = OpenStore(path, options);
  Done(*stopped, MakeWrite(1, 0, 1));
  stop.Arm();
  auto late = StartWrite(*stopped, MakeWrite(1, 1, 2));
  stop.AwaitStopped();
  const auto other = OpenStore(path, Busy());
  for (int i = 2; i < 30; ++i) Done(*other, MakeWrite(1, i, i + 1));
  Await([&] { return !fs::exists(inside + "/log/0000000000000000"); });
  stop.Go();
  const auto answer = late.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->kind, Kind::kDone) << "others wrote after it, and cut the log";
  EXPECT_EQ(Claim(*stopped, 1), ClaimOf(30));
}

// A writer is stopped before its link, and the number is free again when it wakes: its segment is
// being removed, and only the folder is left. Its link is a success and must not count.
TEST_F(DirSessionStoreTest, AnEntryInASegmentThatIsBeingRemovedDoesNotCount) {
  for (const int before : {1, 2, 3}) {  // 3: its entry is the last of the segment
    const std::string directory = absl::StrCat(path, before);
    Stop stop("link");
    DirStoreOptions options, cleaner = Busy();
    options.entries_per_segment = 4;
    const auto other = OpenStore(directory, options);  // does not sweep
    options.before_step = stop.Hook();
    const auto stopped = OpenStore(directory, options);
    for (int i = 0; i < before; ++i) Done(*other, MakeWrite(1, i, i + 1));
    stop.Arm();
    auto late = StartWrite(*stopped, MakeWrite(1, before, 1000));
    auto another = StartWrite(*stopped, MakeWrite(2, 0, 1));
    stop.AwaitStopped();
    for (int i = before; i < 20; ++i) Done(*other, MakeWrite(1, i, i + 1));
    std::atomic<bool> emptied = false;
    cleaner.leftover_age = absl::Hours(1);  // the writer's file stays
    cleaner.before_step = [&](absl::string_view step) {
      if (step != "remove folder") return 0;
      emptied = true;
      return EBUSY;
    };
    const auto sweeping = OpenStore(directory, cleaner);
    Await([&] { return emptied.load(); });
    EXPECT_TRUE(fs::is_empty(directory + "/sessions-1/log/0000000000000000"));
    stop.Go();
    EXPECT_EQ(late.get().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(another.get()->kind, Kind::kDone);
    const auto fresh = OpenStore(directory);
    for (SessionStore* store : {other.get(), stopped.get(), sweeping.get(), fresh.get()}) {
      EXPECT_EQ(Claim(*store, 1), ClaimOf(20));
      EXPECT_EQ(Claim(*store, 2), ClaimOf(1));
    }
  }
}

// The same for who opens the store while the false entry lies there, as the first of its segment.
TEST_F(DirSessionStoreTest, AFalseEntryIsNotReadLater) {
  Stop stop("link");
  DirStoreOptions options, cleaner = Busy();
  options.entries_per_segment = 4;
  const auto other = OpenStore(path, options);  // does not sweep
  options.before_step = stop.Hook();
  const auto stopped = OpenStore(path, options);
  for (int i = 0; i < 4; ++i) Done(*other, MakeWrite(1, i, i + 1));
  stop.Arm();
  auto late = StartWrite(*stopped, MakeWrite(2, 0, 1000));
  stop.AwaitStopped();
  for (int i = 4; i < 24; ++i) Done(*other, MakeWrite(1, i, i + 1));
  std::atomic<int> emptied = 0;
  cleaner.leftover_age = absl::Hours(1);
  cleaner.before_step = [&](absl::string_view step) {
    return step == "remove folder" && ++emptied > 1 ? EBUSY : 0;  // the first goes
  };
  auto sweeping = OpenStore(path, cleaner);
  Await([&] { return emptied > 1; });
  sweeping = nullptr;
  EXPECT_TRUE(fs::is_empty(inside + "/log/0000000000000001"));
  stop.Go();
  EXPECT_EQ(late.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(fs::exists(inside + "/log/0000000000000001/0000000000000004"));
  const auto fresh = OpenStore(path);
  for (SessionStore* store : {other.get(), stopped.get(), fresh.get()}) {
    EXPECT_EQ(Claim(*store, 1), ClaimOf(24));
    EXPECT_EQ(Claim(*store, 2), "");
  }
}

// A writer that is stopped before it makes the folder of the next segment makes one that was there
// and is gone.
TEST_F(DirSessionStoreTest, AFalseSegmentIsNotEntered) {
  Stop stop("make folder");
  DirStoreOptions options;
  options.entries_per_segment = 4;
  auto other = OpenStore(path, options);
  for (int i = 0; i < 4; ++i) Done(*other, MakeWrite(1, i, i + 1));
  options.before_step = stop.Hook();
  const auto stopped = OpenStore(path, options);
  stop.Arm();
  auto late = StartWrite(*stopped, MakeWrite(1, 4, 1000));
  stop.AwaitStopped();
  other = OpenStore(path, Busy());
  for (int i = 4; i < 30; ++i) Done(*other, MakeWrite(1, i, i + 1));
  const std::string second = inside + "/log/0000000000000001";
  Await([&] { return !fs::exists(second); });
  other = nullptr;
  stop.Go();
  const auto answer = late.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->kind, Kind::kClaimMismatch);
  EXPECT_TRUE(fs::exists(second)) << "the folder that it made";
  EXPECT_EQ(Claim(*stopped, 1), ClaimOf(30));
  other = OpenStore(path, Busy());
  EXPECT_EQ(Claim(*other, 1), ClaimOf(30));
  Await([&] { return !fs::exists(second); });
}

// A reader is stopped after it has learned which file it must read.
TEST_F(DirSessionStoreTest, AReaderFindsWhatReplacedItsFile) {
  Stop record("read"), chunk("read");
  std::atomic<int64_t> now = 1'800'000'000'000;
  DirStoreOptions options, busy = Busy();
  options.entries_per_segment = 4;
  options.clock = busy.clock = [&] { return absl::FromUnixMillis(now); };
  options.before_step = record.Hook();
  const auto of_record = OpenStore(path, options);
  options.before_step = chunk.Hook();
  const auto of_chunk = OpenStore(path, options);
  StoreWrite write = WithChunk(MakeWrite(2, 0, 1), "c1");
  write.expiry = absl::Seconds(1);
  Done(*of_chunk, write);
  Done(*of_record, MakeWrite(1, 0, 1));
  EXPECT_EQ(Claim(*of_chunk, 1), ClaimOf(1));
  record.Arm(2);  // the first tells that there is no newer entry
  auto late = StartRead(*of_record, SessionName(1));
  record.AwaitStopped();
  chunk.Arm(2);
  std::promise<std::vector<std::string>> chunks;
  of_chunk->ReadChunks({"c1"}, [&](auto answer) { chunks.set_value(*std::move(answer)); });
  chunk.AwaitStopped();
  now += 1000;
  const auto other = OpenStore(path, busy);
  for (int i = 1; i < 30; ++i) Done(*other, MakeWrite(1, i, i + 1));
  Await([&] { return !fs::exists(inside + "/log/0000000000000000") && Files("chunks").empty(); });
  record.Go();
  chunk.Go();
  const auto answer = late.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->found.claim, ClaimOf(30));
  EXPECT_EQ(chunks.get_future().get(), (std::vector<std::string>{""}));
}

// Two stores shorten the log at once: one is stopped while it moves the first segment, which the
// other removes.
TEST_F(DirSessionStoreTest, NothingIsLostWhereTwoSweep) {
  Stop stop("link");
  DirStoreOptions options;
  options.entries_per_segment = 4;
  auto other = OpenStore(path, options);
  for (int i = 1; i <= 12; ++i) Done(*other, MakeWrite(i, 0, 1));
  for (int i = 1; i <= 40; ++i) Done(*other, MakeWrite(12, i, i + 1));
  options.before_step = stop.Hook();
  options.sweep_every = absl::Milliseconds(1);
  stop.Arm();
  const auto stopped = OpenStore(path, options);
  stop.AwaitStopped();
  other = OpenStore(path, Busy());
  Await([&] { return !fs::exists(inside + "/log/0000000000000000"); });
  other = nullptr;
  stop.Go();
  Await([&] { return Files("log").size() <= 9; });  // twice the 12 records in segments of 4
  for (int i = 1; i <= 12; ++i) {
    EXPECT_EQ(Claim(*stopped, i), ClaimOf(i < 12 ? 1 : 41));
    EXPECT_EQ(Claim(*OpenStore(path), i), ClaimOf(i < 12 ? 1 : 41));
  }
}

// Its chunks are files that nobody needs as far as others can see.
TEST_F(DirSessionStoreTest, ChunksOfAStoppedWriterAreWrittenAgainAfterASweep) {
  Stop stop("link");
  DirStoreOptions options;
  options.before_step = stop.Hook();
  const auto stopped = OpenStore(path, options);
  Done(*stopped, WithChunk(MakeWrite(1, 0, 1), "c1", "first"));
  stop.Arm();
  StoreWrite write = WithChunk(MakeWrite(1, 1, 2), "c2", "second");
  write.kept_chunks = {"c1"};
  auto late = StartWrite(*stopped, write);
  stop.AwaitStopped();
  ASSERT_EQ(Files("chunks").size(), 2u);
  const auto old = fs::file_time_type::clock::now() - std::chrono::minutes(11);
  for (const std::string& file : Files("chunks")) fs::last_write_time(file, old);
  DirStoreOptions sweeps;
  sweeps.sweep_every = absl::Milliseconds(1);
  const auto other = OpenStore(path, sweeps);
  Await([&] { return Files("chunks").size() == 1; });
  stop.Go();
  EXPECT_EQ(late.get()->kind, Kind::kDone);
  EXPECT_EQ(*ReadChunksNow(*other, {"c1", "c2"}), (std::vector<std::string>{"first", "second"}));
}

TEST_F(DirSessionStoreTest, AChunkIsSweptOrKeptButNeverBoth) {
  std::atomic<int64_t> now = 1'800'000'000'000;
  Stop stop("link");
  DirStoreOptions options, busy = Busy();
  options.entries_per_segment = 4;
  options.clock = busy.clock = [&] { return absl::FromUnixMillis(now); };
  options.before_step = stop.Hook();
  const auto stopped = OpenStore(path, options);
  StoreWrite write = WithChunk(MakeWrite(1, 0, 1), "c1");
  write.expiry = absl::Seconds(10);
  Done(*stopped, write);
  Done(*stopped, MakeWrite(2, 0, 1));
  stop.Arm();
  write = MakeWrite(2, 1, 2);
  write.kept_chunks = {"c1"};
  auto late = StartWrite(*stopped, write);  // decided before the chunk expires
  stop.AwaitStopped();
  now += 10'000;
  const auto other = OpenStore(path, busy);
  Await([&] { return Files("chunks").empty(); });
  stop.Go();
  EXPECT_EQ(late.get().status().code(), kDataLoss);
  EXPECT_EQ(Claim(*other, 2), ClaimOf(1));
}

// Nothing is answered before it is on the disk, and no entry is made before what it needs.
TEST_F(DirSessionStoreTest, FilesAndFoldersAreSyncedInTheirOrder) {
  std::vector<std::string> steps;
  DirStoreOptions options;
  options.entries_per_segment = 2;
  options.before_step = [&](absl::string_view step) {
    if (step != "read") steps.emplace_back(step);
    return 0;
  };
  const auto store = OpenStore(path, options);
  Done(*store, WithChunk(MakeWrite(1, 0, 1), "c1"));
  steps.clear();
  Done(*store, WithChunk(MakeWrite(1, 1, 2), "c2"));
  const std::vector<std::string> file = {"make file", "write", "sync file"};
  std::vector<std::string> expected = file;
  expected.emplace_back("sync folder");
  expected.insert(expected.end(), file.begin(), file.end());
  const std::vector<std::string> rest = {"link", "sync folder", "remove"};
  std::vector<std::string> simple = expected;
  simple.insert(simple.end(), rest.begin(), rest.end());
  EXPECT_EQ(steps, simple);
  steps.clear();
  Done(*store, WithChunk(MakeWrite(1, 2, 3), "c3"));  // the first of a segment
  for (const char* step : {"sync folder", "make folder", "sync folder"}) {
    expected.emplace_back(step);
  }
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(steps, expected);
}

// Each step of a write fails once, with each error.
TEST_F(DirSessionStoreTest, AStepThatFailsLeavesTheOldRecordOrTheNewOne) {
  struct Fault {
    std::atomic<int> left = 1 << 30;  // steps until it
    std::atomic<int> error = 0;
  };
  for (const int error : {ENOSPC, EIO}) {
    Fault fault;
    const std::string directory = absl::StrCat(path, error), in = directory + "/sessions-1/";
    const auto files = [&] {
      return std::distance(fs::directory_iterator(in + "records"), {}) +
             std::distance(fs::directory_iterator(in + "chunks"), {});
    };
    DirStoreOptions options;
    options.entries_per_segment = 3;  // some writes make a segment
    options.before_step = [&](absl::string_view) { return --fault.left == 0 ? error : 0; };
    const auto store = OpenStore(directory, options);
    Done(*store, WithChunk(MakeWrite(1, 0, 1), "c0"));
    std::string claim = ClaimOf(1);
    std::set<absl::StatusCode> codes;
    for (int step = 1, number = 2; step < 40; ++step) {
      for (int repeat = 0; repeat < 3; ++repeat, ++number) {
        StoreWrite write = WithChunk(MakeWrite(1, 0, number), absl::StrCat("c", number));
        write.expected = claim;
        write.kept_chunks = {"c0"};
        const auto before = files();
        fault.left = step;
        const auto answer = WriteNow(*store, write);
        fault.left = 1 << 30;
        codes.insert(answer.status().code());
        const std::string now = Claim(*store, 1);
        EXPECT_TRUE(!answer.ok() || answer->kind == Kind::kDone);
        if (absl::IsResourceExhausted(answer.status())) {
          EXPECT_EQ(now, claim);
          EXPECT_EQ(files(), before) << "it takes no room";
        }
        EXPECT_EQ(now, answer.ok() || now != claim ? ClaimOf(number) : claim);
        EXPECT_EQ(Claim(*OpenStore(directory), 1), now);
        EXPECT_EQ(*ReadChunksNow(*store, {absl::StrCat("c", number)}),
                  (std::vector<std::string>{now == claim ? "" : "tokens"}));
        claim = now;
      }
    }
    EXPECT_TRUE(codes.contains(absl::StatusCode::kOk));
    EXPECT_TRUE(codes.contains(absl::StatusCode::kUnavailable));
    EXPECT_EQ(codes.contains(absl::StatusCode::kResourceExhausted), error == ENOSPC);
    EXPECT_EQ(codes.size(), error == ENOSPC ? 3u : 2u);
  }
}

TEST_F(DirSessionStoreTest, AFullDiskRefusesWritesAndHasRoomAgainAfterExpiry) {
  fs::create_directory(path);
  if (mount("none", path.c_str(), "tmpfs", 0, "size=512k,mode=700") != 0) {
    GTEST_SKIP() << "a file system of 512 KiB cannot be mounted: " << strerror(errno);
  }
  const auto unmount = [](const std::string* mounted) {
    EXPECT_EQ(umount2(mounted->c_str(), MNT_DETACH), 0);
  };
  const std::unique_ptr<const std::string, decltype(unmount)> mounted(&path, unmount);
  std::atomic<int64_t> now = 1'800'000'000'000;
  DirStoreOptions options = Busy();
  options.clock = [&] { return absl::FromUnixMillis(now); };
  const auto store = OpenStore(path, options);
  Done(*store, MakeWrite(1, 0, 1, "stays"));
  int sessions = 1;
  absl::StatusOr<StoreAnswer> answer;
  do {
    StoreWrite write = MakeWrite(++sessions, 0, 1);
    write.expiry = absl::Minutes(1);
    write = WithChunk(write, absl::StrCat("c", sessions), std::string(5000, 'x'));
    answer = WriteNow(*store, write);
  } while (answer.ok() && sessions < 1000);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted) << answer.status();
  // What is left is filled up, so that a sweep has no room of its own.
  {
    std::ofstream filler(path + "/filler", std::ios::binary);
    while (filler << std::string(512, 'x') && filler.flush()) {
    }
  }
  EXPECT_EQ(WriteNow(*store, MakeWrite(1, 1, 2)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Claim(*store, 1), ClaimOf(1));
  EXPECT_EQ(Claim(*store, sessions), "");
  EXPECT_EQ(Claim(*store, 2), ClaimOf(1));
  now += 60'000;
  Await([&] { return Files("chunks").empty(); });
  Done(*store, MakeWrite(1, 1, 2));
  EXPECT_EQ(Claim(*OpenStore(path), 1), ClaimOf(2));
}

TEST_F(DirSessionStoreTest, ADirectoryThatWasEmptiedFileByFileIsUsedAgain) {
  const auto store = OpenStore(path), other = OpenStore(path);
  Done(*store, MakeWrite(1, 0, 1));
  fs::remove_all(inside);
  for (SessionStore* one : {store.get(), other.get()}) {
    Await([&] {
      const auto answer = ReadNow(*one, SessionName(1));
      return answer.ok() && answer->kind == Kind::kMissing;
    });
  }
  Done(*store, MakeWrite(1, 0, 2));
  EXPECT_EQ(Claim(*other, 1), ClaimOf(2));
}

// Processes. A test starts this program again with these variables; see ChildOfAnotherTest.
constexpr char kChildPath[] = "RIVULET_DIR_STORE_PATH", kChildTask[] = "RIVULET_DIR_STORE_TASK";

struct Child {
  pid_t pid = -1;

  Child(const std::string& path, const std::string& task) {
    setenv(kChildPath, path.c_str(), 1);
    setenv(kChildTask, task.c_str(), 1);
    const char* argv[] = {"child", "--gtest_filter=DirSessionStoreProcess.ChildOfAnotherTest",
                          "--gtest_brief=1", nullptr};
    EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, const_cast<char* const*>(argv),
                          environ),
              0);
    unsetenv(kChildPath);
  }
  // The wait status, of the end or, with WUNTRACED, of the stop.
  int Wait(int options = 0) const {
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, options), pid);
    return status;
  }
};

// Adds 1 to the number in record 1, `times` times. Returns how often it was done.
int Count(SessionStore& store, int times, int process) {
  int done = 0;
  for (int tries = 0; done < times; ++tries) {
    const auto seen = ReadNow(store, SessionName(1));
    int value = 0;
    if (!seen.ok() || !absl::SimpleAtoi(seen->found.bytes, &value)) return -1;
    StoreWrite write = MakeWrite(1, 0, 1'000'000 * process + tries + 2, absl::StrCat(value + 1));
    write.expected = seen->found.claim;
    write.chunks = {{absl::StrCat("c", process, "-", tries), "tokens"}};
    const auto answer = WriteNow(store, write);
    if (!answer.ok()) return -1;
    if (answer->kind == Kind::kDone) ++done;
  }
  return done;
}

// "count N P": adds 1 N times, as process P. "kill N": adds 1, and dies before step N. "stop": adds
// 1, and is stopped before its link.
TEST(DirSessionStoreProcess, ChildOfAnotherTest) {
  const char* const path = getenv(kChildPath);
  if (path == nullptr) return;
  const std::vector<std::string> words = absl::StrSplit(getenv(kChildTask), ' ');
  const std::string& task = words[0];
  const int number = words.size() > 1 ? std::stoi(words[1]) : 1;
  // Its claims are its own.
  const int process = words.size() > 2 ? std::stoi(words[2]) : 3 + number;
  DirStoreOptions options = Busy(kShort);
  std::atomic<bool> armed = false;
  std::atomic<int> steps = 0;
  options.before_step = [&](absl::string_view step) {
    if (armed && task == "kill" && ++steps == number) raise(SIGKILL);
    if (task == "stop" && step == "link" && armed.exchange(false)) raise(SIGSTOP);
    return 0;
  };
  if (task != "count") options.sweep_every = absl::Hours(1);
  const auto store = OpenStore(path, options);
  armed = true;
  const int times = task == "count" ? number : 1;
  EXPECT_EQ(Count(*store, times, process), times);
}

TEST_F(DirSessionStoreTest, ProcessesLoseNoUpdate) {
  const auto store = OpenStore(path, Busy(kShort));
  Done(*store, MakeWrite(1, 0, 1, "0"));
  const Child first(path, "count 60 1"), second(path, "count 60 2");
  EXPECT_EQ(Count(*store, 60, 0), 60);
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_EQ(ReadNow(*store, SessionName(1))->found.bytes, "180");
}

TEST_F(DirSessionStoreTest, AKilledProcessLeavesTheOldRecordOrTheNewOne) {
  auto store = OpenStore(path);  // does not sweep, so each child takes the same steps
  Done(*store, MakeWrite(1, 0, 1, "0"));
  bool killed = true;
  int value = 0, lived = 0, died = 0;
  for (int step = 1; killed; ++step) {
    const int status = Child(path, absl::StrCat("kill ", step)).Wait();
    killed = WIFSIGNALED(status);
    const auto answer = ReadNow(*store, SessionName(1));
    ASSERT_TRUE(answer.ok()) << answer.status();
    int now = 0;
    ASSERT_TRUE(absl::SimpleAtoi(answer->found.bytes, &now));
    ++(now == value ? died : lived);
    EXPECT_TRUE(now == value || now == value + 1);
    EXPECT_TRUE(killed || now == value + 1);
    value = now;
    EXPECT_EQ(Count(*store, 1, 0), 1) << "others go on";
    ++value;
    EXPECT_EQ(Claim(*OpenStore(path), 1), Claim(*store, 1));
  }
  EXPECT_GT(died, 5);
  EXPECT_GT(lived, 1);
  store = OpenStore(path, Busy());
  Await([&] { return Files("records").size() == 1; });
}

TEST_F(DirSessionStoreTest, AStoppedProcessHoldsUpNobody) {
  const auto store = OpenStore(path, Busy(kShort));
  Done(*store, MakeWrite(1, 0, 1, "0"));
  const Child child(path, "stop");
  ASSERT_TRUE(WIFSTOPPED(child.Wait(WUNTRACED)));
  EXPECT_EQ(Count(*store, 40, 0), 40);
  EXPECT_EQ(kill(child.pid, SIGCONT), 0);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(ReadNow(*store, SessionName(1))->found.bytes, "41");
}

}  // namespace
}  // namespace rivulet
