// SPDX-License-Identifier: Apache-2.0
// RequestLog: one line of JSON for each request at its end. A LineWriter writes them, so no request
// waits for the disk. Never holds prompts or replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/line_writer.h"

namespace rivulet {

// The content of a line. Empty texts and absent numbers are left out.
struct RequestLine {
  absl::Time begin, end;  // of the handler; of the call, or of a member of a Multiplex
  std::string request_id;
  // As in the API: "rivulet.v1.InferenceService" and "Generate". Without a service: a request of
  // Multiplex, or an unknown method.
  std::string service, method;
  std::optional<absl::StatusCode> code;  // absent before the end
  std::string reason;                    // of an error
  std::string tenant, key;               // the key's name
  std::string model, session, trace_id, peer;
  std::optional<int64_t> prompt_tokens, generated_tokens;
  std::optional<absl::Time> arrival;  // at the engine; the times count from here
  std::optional<absl::Duration> queue_time, first_token_time, engine_time;
};

// The line as JSON, without the newline.
std::string FormatRequestLine(const RequestLine& line);

struct RequestLogOptions {
  std::string target;         // path of a file, to which lines are appended, or kRequestLogStderr
  double sample = 1;          // share of the requests without an error that is written, 0 to 1
  size_t max_waiting = 8192;  // lines; one more is dropped
};
inline constexpr char kRequestLogStderr[] = "stderr";

// Thread: any, but the destructor once.
class RequestLog {
 public:
  // Errors: INVALID_ARGUMENT (CONFIG_INVALID: the file cannot be opened for writing).
  static absl::StatusOr<std::unique_ptr<RequestLog>> Open(const RequestLogOptions& options);
  // Writes waiting lines, for at most a second.
  ~RequestLog();

  // The status that Open would return for `target`. Makes no file.
  static absl::Status Check(const std::string& target);

  // Whether a request is to be added: every request with an error, and a random part of the others.
  bool Takes(bool error) const;
  // Never waits for the disk.
  void Add(RequestLine line);
  // Opens the file again, which may have been renamed: later lines go to the file that has the name
  // now. Returns at once. If that file cannot be opened, lines still go to the old file. False
  // where the log is not a file.
  bool Reopen();

  LineCounts counts() const { return writer_.counts(); }

 private:
  RequestLog(const RequestLogOptions& options, std::unique_ptr<LineSink> sink);

  const RequestLogOptions options_;
  LineWriter writer_;
};

}  // namespace rivulet
