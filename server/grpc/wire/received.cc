// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/received.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string TextOf(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection& reflection = *message.GetReflection();
  return field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                              : reflection.GetString(message, field);
}

const Message& MessageOf(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection& reflection = *message.GetReflection();
  return field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                              : reflection.GetMessage(message, field);
}

// The path as errors name it: a oneof is a level of its own.
std::string PathOf(const FieldDescriptor* field, int i) {
  const auto* oneof = field->real_containing_oneof();
  return absl::StrCat(oneof == nullptr ? "" : absl::StrCat(oneof->name(), "."), field->name(),
                      field->is_repeated() ? absl::StrCat("[", i, "]") : "");
}

// The first text in `message` that is not UTF-8; "" where there is none. The parser keeps the text
// at which it stops. Searches no deeper than the parser's own limit.
std::string BadTextPath(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool text = field->type() == FieldDescriptor::TYPE_STRING;
    if (!text && field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (text && !IsUtf8(TextOf(message, field, i))) return PathOf(field, i);
      const std::string inner = text ? "" : BadTextPath(MessageOf(message, field, i));
      if (!inner.empty()) return absl::StrCat(PathOf(field, i), ".", inner);
    }
  }
  return "";
}

}  // namespace

absl::Status MalformedMessage(const Message& parsed, std::optional<size_t> bytes) {
  constexpr char kReason[] = "MESSAGE_MALFORMED";
  const auto& type = parsed.GetDescriptor()->full_name();
  if (!bytes) {
    return InvalidField(kReason, "",
                        absl::StrCat("the call ended with no message; it takes one ", type));
  }
  const std::string path = BadTextPath(parsed);
  if (!path.empty()) return InvalidField(kReason, path, absl::StrCat(path, " is not valid UTF-8"));
  return InvalidField(kReason, "",
                      absl::StrCat("the message of ", *bytes, " bytes is not a valid ", type));
}

}  // namespace rivulet
