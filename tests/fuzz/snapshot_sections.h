// SPDX-License-Identifier: Apache-2.0
// A snapshot with a valid frame and payloads of any content.
#pragma once

#include <isa-l/crc.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace rivulet::fuzz {

// Cuts `bytes` into payloads: a length n of two bytes, then n bytes. The sections' types count up
// as in a snapshot with one chunk of state.
inline std::string SnapshotFromPayloads(const std::string& bytes, uint32_t version) {
  std::string out = "RVLTSNAP";
  const auto number = [&out](auto value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  number(version);
  size_t at = 0;
  for (uint32_t type = 1; type <= 4; ++type) {
    uint16_t size = 0;
    if (at + sizeof size <= bytes.size()) {
      std::memcpy(&size, bytes.data() + at, sizeof size);
      at += sizeof size;
    }
    const std::string payload = bytes.substr(at, size);
    at += payload.size();
    if (type == 3 && payload.empty()) continue;
    std::string section;
    section.append(reinterpret_cast<const char*>(&type), sizeof type);
    const uint64_t length = payload.size();
    section.append(reinterpret_cast<const char*>(&length), sizeof length);
    section += payload;
    out += section;
    number(~crc32_iscsi(reinterpret_cast<unsigned char*>(section.data()),
                        static_cast<int>(section.size()), ~0u));
  }
  return out;
}

}  // namespace rivulet::fuzz
