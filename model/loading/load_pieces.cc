// SPDX-License-Identifier: Apache-2.0
#include "model/loading/load_pieces.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "model/base/error.h"
#include "model/base/thread.h"
#include "model/base/thread_team.h"

namespace rivulet {

absl::Status ForEachLoadPiece(int pieces, absl::FunctionRef<absl::Status(int i)> work) {
  constexpr int kMostThreads = 16;
  std::atomic<int> next{0};
  std::atomic<bool> failed{false};
  std::vector<absl::Status> ended(
      size_t(std::clamp(std::min(UsableCores(), pieces), 1, kMostThreads)));
  const auto take = [&](absl::Status* status) {
    for (int i = next++; i < pieces && !failed; i = next++) {
      *status = work(i);
      if (!status->ok()) failed = true;
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < ended.size(); ++i) {
    others.emplace_back([&, i] {
      NameThread("load-weights");
      take(&ended[i]);
    });
  }
  take(&ended[0]);
  for (std::thread& thread : others) thread.join();
  for (const absl::Status& status : ended) RIVULET_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace rivulet
