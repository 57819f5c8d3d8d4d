// SPDX-License-Identifier: Apache-2.0
// `rivulet quantize`.
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/output/progress.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "server/start/model_quantizer.h"

namespace rivulet {
namespace {

// Scores the text of --check with the model of a directory. Returns a line for the summary.
absl::StatusOr<std::string> Loss(const QuantizeOptions& options, const std::string& directory) {
  ScoreOptions score;
  score.target.model_dir = absl::StrCat("model=", directory);
  score.target.backend = "cpu";
  score.text = options.check;
  score.window = options.check_window;
  score.limit = options.check_limit;
  score.summary_only = true;
  RIVULET_ASSIGN_OR_RETURN(const std::string summary, RunCommand(score));
  return absl::StrCat(directory, ": ", summary);
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const QuantizeOptions& options) {
  std::string loss;
  if (!options.check.empty()) {  // before anything is written: the file may not be text
    RIVULET_ASSIGN_OR_RETURN(loss, Loss(options, options.model_dir));
  }
  const absl::Time start = absl::Now();
  std::optional<Progress> progress;
  RIVULET_ASSIGN_OR_RETURN(const QuantizedDirectory made,
                           QuantizeModel(options.model_dir, options.out, options.weights,
                                         [&](int64_t done, int64_t all) {
                                           if (!progress.has_value())
                                             progress.emplace(all, "bytes");
                                           progress->Update(done);
                                         }));
  progress.reset();
  std::string summary = absl::StrCat(
      options.out, ": ", Mebibytes(made.bytes_after), " of weights, ",
      absl::StrFormat("%.0f", 100.0 * double(made.bytes_after) / double(made.bytes_before)),
      " % of ", Mebibytes(made.bytes_before), "; ", made.rounded,
      " tensors rounded with --weights ", options.weights, ", ", made.kept, " kept, ",
      absl::StrFormat("%.1f s", absl::ToDoubleSeconds(absl::Now() - start)));
  if (options.check.empty()) return summary;
  RIVULET_ASSIGN_OR_RETURN(const std::string after, Loss(options, options.out));
  return absl::StrCat(summary, "\n", loss, "\n", after);
}

}  // namespace rivulet
