// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/guarded.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "model/base/error.h"
#include "server/log.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

void LogException(absl::string_view what) {
  LogLimited(LogLevel::kError, "exception",
             {{"method", CallNote::Current()}, {"what", std::string(what)}});
}

absl::Status NoMemory(absl::string_view what) {
  LogException(what);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the server has no memory for what this request needs",
                   {"REQUEST_MEMORY", "", {}});
}

}  // namespace

absl::Status ErrorOfException() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc& error) {
    return NoMemory(error.what());
  } catch (const std::length_error& error) {
    return NoMemory(error.what());
  } catch (const std::exception& error) {
    LogException(error.what());
  } catch (...) {
    LogException("not a std::exception");
  }
  return MakeError(absl::StatusCode::kInternal,
                   "a bug of the server ended the work for this request; its log says more",
                   {"UNEXPECTED_EXCEPTION", "", {}});
}

}  // namespace rivulet
