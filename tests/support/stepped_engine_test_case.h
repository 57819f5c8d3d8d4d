// SPDX-License-Identifier: Apache-2.0
// A fixture for tests of an engine without threads, over a fake backend, on a clock that the test
// moves.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "absl/time/time.h"
#include "server/engine/engine_parts.h"
#include "tests/support/fake_backend.h"
#include "tests/support/reply_collector.h"

namespace rivulet {

class SteppedEngineTestCase : public ::testing::Test {
 protected:
  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  ReplyCollector collector_;
  std::unique_ptr<SteppedEngine> engine_ = CreateSteppedEngine(
      config_, nullptr, std::make_unique<FakeBackend>(config_, FakeBackendOptions(), probe_),
      EngineOptions(), [this] { return now_; });
};

}  // namespace rivulet
