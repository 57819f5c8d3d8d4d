// SPDX-License-Identifier: Apache-2.0
// Loading and unloading, with engines that do what the test says. A test that waits for what never
// comes fails by its time limit.
#include "server/model_loader.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/grpc/grpc_server.h"
#include "server/health/health_watch.h"
#include "tests/support/paths.h"
#include "tests/support/raw_rpc.h"
#include "tests/unit/server/fake_engine.h"

namespace rivulet {
namespace {

using testing::FakeEngine;
using ::testing::HasSubstr;
using testing::Health;

const std::string kModels = SourcePath("tests/conformance/models");

class ModelLoaderTest : public ::testing::Test {
 protected:
  ModelLoaderTest() {
    auto server = GrpcServer::Create(&models_, GrpcServerOptions());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    health_ = std::make_unique<HealthWatch>(&models_, server_.get(), absl::Hours(1));
    Build({{}, {kModels}, absl::Hours(1)});
  }
  ~ModelLoaderTest() override {
    health_.reset();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Build(ModelLoaderOptions options) {
    loader_ = std::make_unique<ModelLoader>(
        std::move(options),
        [this](std::shared_ptr<const Model> model) { return Start(std::move(model)); }, &models_,
        health_.get());
  }
  // What becomes of a model once it is read.
  absl::StatusOr<ServedModel> Start(std::shared_ptr<const Model> model) {
    if (model->config().name == held_) {
      starting_.Notify();
      may_start_.WaitForNotification();
    }
    if (!refuse_.ok()) return refuse_;
    ++engines_;
    std::shared_ptr<FakeEngine> engine(new FakeEngine(std::move(model)), [this](FakeEngine* ended) {
      delete ended;
      --engines_;
    });
    engine_ = engine.get();
    return ServedModel{engine, "cpu"};
  }
  std::string HealthOf(const std::string& name) {
    return Health(server_->InProcessChannel(), name);
  }
  // A directory in a repository of the test's own, with these files of a good model.
  void Put(const std::string& directory, const std::string& model,
           const std::vector<std::string>& files) {
    std::filesystem::create_directories(folder_ / directory);
    for (const std::string& file : files) {
      std::filesystem::copy_file(std::filesystem::path(kModels) / model / file,
                                 folder_ / directory / file);
    }
  }
  static std::string Reason(const absl::Status& status) { return GetErrorDetail(status).reason; }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("loader." + std::to_string(getpid()));
  ServedModels models_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<HealthWatch> health_;
  std::unique_ptr<ModelLoader> loader_;
  absl::Status refuse_;
  std::string held_;  // the model whose start waits for may_start_
  absl::Notification starting_, may_start_;
  std::atomic<int> engines_ = 0;
  FakeEngine* engine_ = nullptr;  // the latest
};

TEST_F(ModelLoaderTest, LoadsByNameAndServesOnceItAnswers) {
  const auto summary = loader_->Load("tiny-image");
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->name(), "tiny-image");
  EXPECT_EQ(summary->weights_sha256().size(), 64u);
  EXPECT_EQ(HealthOf("tiny-image"), "SERVING");
  EXPECT_EQ(HealthOf(""), "SERVING");
  EXPECT_TRUE(models_.Find("tiny-image").ok());
  const absl::Status again = loader_->Load("tiny-image").status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Reason(again), "MODEL_ALREADY_LOADED");
  EXPECT_EQ(GetErrorDetail(again).field, "model");
  EXPECT_EQ(engines_, 1);
}

TEST_F(ModelLoaderTest, ADirectoryOfItsOwnComesBeforeTheRepositoriesAndTheyInOrder) {
  Put("tiny-image", "tiny-image", {"config.json", "model.safetensors"});
  const std::string own = kModels + "/tiny-rfa";
  Build({{{"tiny-rfa", own}}, {folder_.string(), kModels}, absl::Hours(1)});
  ASSERT_TRUE(loader_->Load("tiny-rfa").ok());
  EXPECT_EQ(engine_->model().directory(), own);
  ASSERT_TRUE(loader_->Load("tiny-image").ok());
  EXPECT_EQ(engine_->model().directory(), (folder_ / "tiny-image").string());
  ASSERT_TRUE(loader_->Load("tiny-favor").ok());
  EXPECT_EQ(engine_->model().directory(), kModels + "/tiny-favor");
}

// Who may write to a repository decides what is served from it.
TEST_F(ModelLoaderTest, ALinkInARepositoryIsFollowed) {
  std::filesystem::create_directories(folder_);
  std::filesystem::create_directory_symlink(kModels + "/tiny-image", folder_ / "tiny-image");
  std::filesystem::create_directory_symlink(kModels + "/tiny-rfa", folder_ / "tiny-favor");
  std::filesystem::create_directory_symlink(kModels + "/absent", folder_ / "absent");
  Build({{}, {folder_.string()}, absl::Hours(1)});
  EXPECT_TRUE(loader_->Load("tiny-image").ok());
  EXPECT_EQ(Reason(loader_->Load("tiny-favor").status()), "MODEL_NAME_DIFFERS");
  EXPECT_EQ(Reason(loader_->Load("absent").status()), "MODEL_NOT_IN_REPOSITORY");
}

// A checkpoint of the family has no name of its own; one that says its name keeps it, unless the
// operator gave its directory another.
TEST_F(ModelLoaderTest, AModelWithoutANameGetsTheNameAskedFor) {
  std::filesystem::create_directories(folder_);
  std::filesystem::create_directory_symlink(SourcePath("tests/conformance/family/gla"),
                                            folder_ / "text_1");
  Build({{{"digits", kModels + "/tiny-image"}}, {folder_.string()}, absl::Hours(1)});
  for (const std::string name : {"text_1", "digits"}) {
    const auto summary = loader_->Load(name);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->name(), name);
    EXPECT_EQ(engine_->model().config().name, name);
  }
}

TEST_F(ModelLoaderTest, AGgufFileInARepositoryIsLoadedByTheNameItGives) {
  const std::string gguf = SourcePath("tests/conformance/gguf/");
  std::filesystem::create_directories(folder_);
  for (const char* part : {"-00003-of-00003", "-00001-of-00003", "-00002-of-00003"}) {
    std::filesystem::copy_file(absl::StrCat(gguf, "rwkv7-parts/model", part, ".gguf"),
                               folder_ / absl::StrCat("RWKV7 Small", part, ".gguf"));
  }
  std::filesystem::copy_file(gguf + "mamba2-f32/model.gguf", folder_ / "one.gguf");
  Build({{}, {folder_.string()}, absl::Hours(1)});
  for (const std::string name : {"rwkv7-small", "one"}) {
    const auto summary = loader_->Load(name);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->name(), name);
    EXPECT_EQ(engine_->model().config().name, name);
  }
  EXPECT_EQ(Reason(loader_->Load("rwkv7-small-00002-of-00003").status()),
            "MODEL_NOT_IN_REPOSITORY");
}

TEST_F(ModelLoaderTest, ALoadThatFailsChangesNothing) {
  Put("other", "tiny-image", {"config.json", "model.safetensors"});
  Put("half", "tiny-image", {"config.json"});
  Put("empty", "tiny-image", {});
  Put("bad", "tiny-image", {"model.safetensors"});
  std::ofstream(folder_ / "bad" / "config.json") << R"({"format": "another"})";
  Build({{}, {folder_.string()}, absl::Hours(1)});
  const auto expect = [&](const std::string& name, absl::StatusCode code, const char* message) {
    const absl::Status status = loader_->Load(name).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_EQ(HealthOf(name), "NOT_FOUND") << name;
    EXPECT_TRUE(models_.all().empty()) << name;
    return status;
  };
  const absl::Status absent = expect("tiny-image", absl::StatusCode::kNotFound, folder_.c_str());
  EXPECT_EQ(Reason(absent), "MODEL_NOT_IN_REPOSITORY");
  EXPECT_EQ(GetErrorDetail(absent).field, "model");
  EXPECT_EQ(Reason(expect("other", absl::StatusCode::kFailedPrecondition, "named \"tiny-image\"")),
            "MODEL_NAME_DIFFERS");
  (void)expect("half", absl::StatusCode::kFailedPrecondition, "model.safetensors");
  (void)expect("empty", absl::StatusCode::kFailedPrecondition, "config.json");
  const absl::Status bad = expect("bad", absl::StatusCode::kFailedPrecondition, "format");
  EXPECT_EQ(GetErrorDetail(bad).field, "") << "no field of the request";

  Build({{}, {kModels}, absl::Hours(1)});
  ErrorDetail detail;
  detail.reason = "OUT_OF_MEMORY";
  refuse_ = MakeError(absl::StatusCode::kResourceExhausted, "64 sessions do not fit", detail);
  const absl::Status full =
      expect("tiny-image", absl::StatusCode::kResourceExhausted, "64 sessions do not fit");
  EXPECT_EQ(Reason(full), "OUT_OF_MEMORY");
  EXPECT_THAT(std::string(full.message()), HasSubstr("tiny-image"));
  refuse_ = absl::OkStatus();
  EXPECT_TRUE(loader_->Load("tiny-image").ok()) << "the failed one is no longer busy";
}

TEST_F(ModelLoaderTest, WhileAModelIsLoadedItIsBusyAndOthersAreNot) {
  held_ = "tiny-image";
  absl::Status loaded;
  std::thread load([&] { loaded = loader_->Load("tiny-image").status(); });
  starting_.WaitForNotification();
  const absl::Status second = loader_->Load("tiny-image").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(second), "MODEL_BUSY");
  EXPECT_THAT(std::string(second.message()), HasSubstr("being loaded"));
  const absl::Status unload = loader_->Unload("tiny-image", absl::ZeroDuration()).status();
  EXPECT_EQ(unload.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(unload), "MODEL_BUSY");
  EXPECT_EQ(HealthOf("tiny-image"), "NOT_FOUND");
  EXPECT_EQ(models_.Find("tiny-image").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(loader_->Load("tiny-rfa").ok());
  EXPECT_EQ(models_.Find("")->name(), "tiny-rfa");
  may_start_.Notify();
  load.join();
  EXPECT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(HealthOf("tiny-image"), "SERVING");
}

TEST_F(ModelLoaderTest, AnUnloadDrainsTellsWhatEndedAndFreesTheEngine) {
  ASSERT_TRUE(loader_->Load("tiny-image").ok());
  engine_->drain().Hold(/*client_sessions=*/3);
  const absl::Time before = absl::Now();
  absl::StatusOr<ModelControl::Unloaded> unloaded;
  std::thread unload([&] { unloaded = loader_->Unload("tiny-image", std::nullopt); });
  const absl::Time deadline = engine_->drain().WaitFor(1)[0];
  EXPECT_GE(deadline, before + absl::Hours(1)) << "the server's own";
  EXPECT_EQ(Reason(models_.Find("tiny-image").status()), "MODEL_UNLOADING");
  EXPECT_EQ(HealthOf("tiny-image"), "NOT_SERVING");
  const absl::Status load = loader_->Load("tiny-image").status();
  EXPECT_EQ(load.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(load.message()), HasSubstr("being unloaded"));
  EXPECT_EQ(engines_, 1);
  engine_->drain().End(true);
  unload.join();
  ASSERT_TRUE(unloaded.ok()) << unloaded.status();
  EXPECT_TRUE(unloaded->all_ended);
  EXPECT_EQ(unloaded->sessions_closed, 3);
  EXPECT_EQ(engines_, 0);
  EXPECT_EQ(Reason(loader_->Unload("tiny-image", std::nullopt).status()), "MODEL_NOT_FOUND");
  ASSERT_TRUE(loader_->Load("tiny-image").ok()) << "again";
  EXPECT_EQ(HealthOf("tiny-image"), "SERVING");
}

TEST_F(ModelLoaderTest, ASecondUnloadJoinsTheFirstWithItsOwnDeadline) {
  ASSERT_TRUE(loader_->Load("tiny-image").ok());
  engine_->drain().Hold(5);
  std::vector<absl::StatusOr<ModelControl::Unloaded>> unloaded(2);
  std::thread patient([&] { unloaded[0] = loader_->Unload("tiny-image", absl::Hours(2)); });
  const absl::Time later = engine_->drain().WaitFor(1)[0];
  std::thread hasty([&] { unloaded[1] = loader_->Unload("tiny-image", absl::ZeroDuration()); });
  EXPECT_LT(engine_->drain().WaitFor(2)[1], later - absl::Hours(1));
  engine_->drain().End(false);
  patient.join();
  hasty.join();
  for (const auto& one : unloaded) {
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_FALSE(one->all_ended);
    EXPECT_EQ(one->sessions_closed, 5);
  }
  EXPECT_EQ(engines_, 0);
}

TEST_F(ModelLoaderTest, AServerThatEndsLoadsNothingMore) {
  held_ = "tiny-image";
  absl::Status loaded;
  std::thread load([&] { loaded = loader_->Load("tiny-image").status(); });
  starting_.WaitForNotification();
  loader_->Close();
  may_start_.Notify();
  load.join();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Reason(loaded), "DRAINING");
  EXPECT_TRUE(models_.all().empty());
  EXPECT_EQ(engines_, 0) << "what was loaded in vain is gone";
  EXPECT_EQ(Reason(loader_->Load("tiny-rfa").status()), "DRAINING");
  EXPECT_EQ(Reason(loader_->Unload("tiny-rfa", std::nullopt).status()), "DRAINING");
}

}  // namespace
}  // namespace rivulet
