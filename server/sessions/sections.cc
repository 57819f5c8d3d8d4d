// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sections.h"

#include <isa-l/crc.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~0u;
  while (!bytes.empty()) {  // its length is an int
    const absl::string_view part = bytes.substr(0, size_t{1} << 30);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(part.data()));
    crc = crc32_iscsi(data, static_cast<int>(part.size()), crc);
    bytes.remove_prefix(part.size());
  }
  return ~crc;
}

}  // namespace

void SectionWriter::AddSection(uint32_t type, absl::string_view payload) {
  const size_t begin = bytes_.size();
  Number(type);
  Number(static_cast<uint64_t>(payload.size()));
  Bytes(payload.data(), payload.size());
  Number(Crc32c(absl::string_view(bytes_).substr(begin)));
}

absl::string_view SectionReader::Bytes(uint64_t size) {
  if (size > left_.size()) {
    short_ = true;
    left_ = {};
    return {};
  }
  const absl::string_view bytes = left_.substr(0, size);
  left_.remove_prefix(size);
  return bytes;
}

absl::StatusOr<absl::string_view> SectionReader::Section(uint32_t type) {
  const size_t begin = all_.size() - left_.size();
  const auto found = Number<uint32_t>();
  const auto size = Number<uint64_t>();
  const absl::string_view payload = Bytes(size);
  const absl::string_view covered = taken().substr(begin);
  const auto crc = Number<uint32_t>();
  if (!ok()) return absl::DataLossError("it ends early");
  if (crc != Crc32c(covered)) return absl::DataLossError("a checksum does not match");
  if (found != type) {
    return absl::DataLossError(
        absl::StrCat("a section of type ", found, " stands where type ", type, " belongs"));
  }
  return payload;
}

}  // namespace rivulet
