// SPDX-License-Identifier: Apache-2.0
#include "model/text/byte_alphabet.h"

#include "model/base/utf8.h"

namespace rivulet {
namespace {

constexpr uint32_t kFirstOther = 0x100;
constexpr uint32_t kOthers = 68;  // bytes that are no printable Latin-1

bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

// code point -> byte, or -1.
std::array<int16_t, kFirstOther + kOthers> MakeInverse() {
  std::array<int16_t, kFirstOther + kOthers> inverse;
  inverse.fill(-1);
  uint32_t other = kFirstOther;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    inverse[IsPrintable(byte) ? byte : other++] = static_cast<int16_t>(byte);
  }
  return inverse;
}

const std::array<int16_t, kFirstOther + kOthers>& Inverse() {
  static const auto inverse = MakeInverse();
  return inverse;
}

std::array<std::string, 256> MakeAlphabet() {
  std::array<std::string, 256> alphabet;
  for (uint32_t code_point = 0; code_point < Inverse().size(); ++code_point) {
    const int16_t byte = Inverse()[code_point];
    if (byte >= 0) AppendUtf8(code_point, &alphabet[static_cast<size_t>(byte)]);
  }
  return alphabet;
}

}  // namespace

const std::array<std::string, 256>& ByteAlphabet() {
  static const auto alphabet = MakeAlphabet();
  return alphabet;
}

bool BytesOfAlphabet(absl::string_view text, std::string* bytes) {
  bytes->clear();
  while (!text.empty()) {
    uint32_t code_point = 0;
    text.remove_prefix(DecodeUtf8(text, &code_point));
    if (code_point >= Inverse().size() || Inverse()[code_point] < 0) return false;
    bytes->push_back(static_cast<char>(Inverse()[code_point]));
  }
  return true;
}

}  // namespace rivulet
