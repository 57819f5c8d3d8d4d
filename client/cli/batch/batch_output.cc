// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/hash/hash.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/batch/batch_result.h"
#include "client/cli/input/line_reader.h"
#include "client/cli/output/output_file.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/json_reader.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

constexpr int kRecordVersion = 1;
constexpr JsonRules kRecordRules = {"INVALID_BATCH_FILE", ""};

std::string ToJson(const BatchRecord& record) {
  nlohmann::ordered_json json;
  json["rivulet_batch"] = kRecordVersion;
  json["input_sha256"] = record.input_sha256;
  json["options"] = record.options;
  json["seed"] = absl::StrCat(record.seed);  // as text: not every JSON reader has 64-bit integers
  json["created"] = record.created;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<BatchRecord> FromJson(const std::string& text) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue value, ParseStrictJson(text, JsonLimits()));
  RIVULET_ASSIGN_OR_RETURN(JsonReader json, JsonReader::Of(kRecordRules, value, ""));
  int version = 0;
  BatchRecord record;
  std::string seed;
  RIVULET_RETURN_IF_ERROR(json.Int("rivulet_batch", kRecordVersion, kRecordVersion, &version));
  RIVULET_RETURN_IF_ERROR(json.Text("input_sha256", &record.input_sha256));
  RIVULET_RETURN_IF_ERROR(json.Text("seed", &seed));
  if (!absl::SimpleAtoi(seed, &record.seed)) return json.Invalid("seed", "is \"", seed, "\"");
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* created,
                           json.Get("created", JsonValue::Kind::kInteger));
  record.created = created->integer;
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* options, json.Get("options", JsonValue::Kind::kObject));
  RIVULET_ASSIGN_OR_RETURN(JsonReader reader, json.Object("options"));
  for (const std::string& name : options->keys) {
    RIVULET_RETURN_IF_ERROR(reader.Text(name, &record.options[name]));
  }
  RIVULET_RETURN_IF_ERROR(json.CheckNoOthers());
  return record;
}

// Not 0.
uint64_t HashOf(const std::optional<std::string>& custom_id) { return absl::HashOf(custom_id) | 1; }

std::string Shown(const BatchRecord& record, const std::string& option) {
  const auto found = record.options.find(option);
  return found == record.options.end() ? absl::StrCat("no ", option)
                                       : absl::StrCat(option, " ", found->second);
}

// OK if both records are of the same batch.
absl::Status CheckSame(const std::string& path, const BatchRecord& begun, const BatchRecord& now) {
  const auto other = [&](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was begun ", what,
                     "; repeat the command as it was, or name another file for the results"));
  };
  if (begun.input_sha256 != now.input_sha256) {
    return other(absl::StrCat("for an input with SHA-256 ", begun.input_sha256.substr(0, 16),
                              "..., and this one has ", now.input_sha256.substr(0, 16), "..."));
  }
  std::map<std::string, std::string> all = begun.options;
  all.insert(now.options.begin(), now.options.end());
  for (const auto& [option, ignored] : all) {
    const std::string then = Shown(begun, option), here = Shown(now, option);
    if (then != here) return other(absl::StrCat("with ", then, ", and this command has ", here));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchOutput>> BatchOutput::Open(const std::string& path,
                                                               const BatchRecord& record,
                                                               const std::vector<bool>& blank) {
  std::unique_ptr<BatchOutput> output(new BatchOutput(path, blank));
  RIVULET_RETURN_IF_ERROR(output->OpenFile());
  struct stat found = {};
  if (fstat(output->fd_, &found) != 0) return output->Failed("cannot be read");
  RIVULET_RETURN_IF_ERROR(output->Begin(record, found.st_size == 0));
  RIVULET_RETURN_IF_ERROR(output->ReadAnswered());
  return output;
}

BatchOutput::BatchOutput(std::string path, const std::vector<bool>& blank)
    : path_(std::move(path)), answered_(blank.begin(), blank.end()) {
  lines_ = num_left_ = std::count(blank.begin(), blank.end(), false);
}

BatchOutput::~BatchOutput() {
  if (fd_ >= 0) close(fd_);
}

absl::Status BatchOutput::OpenFile() {
  struct stat found = {};
  if (stat(path_.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": is no regular file; results are appended to it"));
  }
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) return Failed("cannot be written");
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return Failed("cannot be locked");
  return absl::FailedPreconditionError(absl::StrCat(path_, ": another process writes this file"));
}

// Reads the existing record, or writes `record` if there is none.
absl::Status BatchOutput::Begin(const BatchRecord& record, bool is_empty) {
  constexpr size_t kMostBytes = 1 << 20;
  struct stat found = {};
  if (stat(RecordPath().c_str(), &found) != 0) {
    if (errno != ENOENT) return Failed("cannot be continued");
    if (!is_empty) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": holds something, and there is no ", RecordPath(),
                       ", so it is not the output of a batch; name another file"));
    }
    record_ = record;
    return WriteTextFile(RecordPath(), ToJson(record));
  }
  RIVULET_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(RecordPath(), kMostBytes));
  const absl::StatusOr<BatchRecord> begun = FromJson(text);
  if (!begun.ok()) return Annotate(begun.status(), RecordPath());
  RIVULET_RETURN_IF_ERROR(CheckSame(path_, *begun, record));
  record_ = *begun;
  return absl::OkStatus();
}

absl::Status BatchOutput::ReadAnswered() {
  LineReader lines(path_);
  if (!lines.is_open()) return Failed("cannot be read");
  struct stat found = {};
  if (fstat(fd_, &found) != 0) return Failed("cannot be read");
  int64_t end = 0, whole = 0;  // end of the line; end of the lines that are kept
  while (true) {
    RIVULET_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, lines.Next());
    if (line.has_value()) end += static_cast<int64_t>(line->size()) + 1;
    if (!line.has_value() || end > found.st_size) {  // it has no newline
      return whole < found.st_size ? CutAt(whole) : absl::OkStatus();
    }
    RIVULET_RETURN_IF_ERROR(Mark(*line));
    if (later_.empty()) whole = end;
  }
}

absl::Status BatchOutput::Mark(absl::string_view line) {
  const std::optional<AnsweredLine> result = ReadResult(line);
  const int64_t number = result.has_value() ? result->number : 0;
  if (number < 1 || number >= static_cast<int64_t>(answered_.size()) || IsAnswered(number)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": line ", num_answered() + 1,
                     " is not what this command writes; the file was changed"));
  }
  while (IsAnswered(next_)) ++next_;
  answered_[static_cast<size_t>(number)] = HashOf(result->custom_id);
  const bool in_order = record_.options.find("--unordered") == record_.options.end();
  if (in_order && (number != next_ || !later_.empty())) {
    later_.emplace(number, absl::StrCat(line, "\n"));
  } else {
    --num_left_;
  }
  return absl::OkStatus();
}

absl::Status BatchOutput::CheckAnswer(const NumberedLine& line) const {
  const std::optional<std::string>& id = line.line.custom_id;
  if (answered_[static_cast<size_t>(line.number)] == HashOf(id)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path_, ": the result of line ", line.number, " has not the custom_id of that line, ",
      id.has_value() ? Quoted(*id) : "which has none", "; the file was changed"));
}

absl::Status BatchOutput::CutAt(int64_t bytes) {
  return ftruncate(fd_, bytes) == 0 ? absl::OkStatus() : Failed("cannot be cut");
}

absl::Status BatchOutput::Append(absl::string_view lines) {
  while (appended_.ok() && !lines.empty()) {
    const ssize_t written = write(fd_, lines.data(), lines.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) appended_ = Failed("cannot be written");
    lines.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return appended_;
}

absl::Status BatchOutput::Sync() {
  return fdatasync(fd_) == 0 ? absl::OkStatus() : Failed("cannot be written");
}

absl::Status BatchOutput::Failed(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace rivulet
