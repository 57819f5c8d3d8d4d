// SPDX-License-Identifier: Apache-2.0
// tokenize_texts FILE: tokenizes what stands on stdin with a vocabulary, for tests that compare us
// with others. FILE is a tokenizer.json, the RWKV World vocabulary, whose name ends in .txt, or a
// GGUF file, whose name ends in .gguf.
//   stdin   for each text: a line "BYTES AT_START ADD_SPECIAL PARSE_SPECIAL", then the bytes
//   stdout  for each text a line: ids, "|", begin:end of each, "|", what the ids decode to in hex;
//           or "error REASON MESSAGE"
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/gguf_text.h"
#include "model/text/text_tokenizer.h"
#include "model/text/world_vocabulary.h"
#include "model/weights/gguf_header.h"

namespace rivulet {
namespace {

void Print(const TextTokenizer& tokenizer, const TextTokens& tokens) {
  std::string decoded;
  for (const int32_t id : tokens.ids) {
    std::cout << id << ' ';
    const absl::string_view bytes = tokenizer.TokenBytes(id);
    decoded.append(bytes.data(), bytes.size());
  }
  std::cout << '|';
  for (const SourceSpan span : tokens.spans) std::cout << ' ' << span.begin << ':' << span.end;
  std::cout << " |" << absl::BytesToHexString(decoded) << '\n';
}

absl::StatusOr<std::shared_ptr<const TextTokenizer>> OfGguf(const std::string& bytes) {
  RIVULET_ASSIGN_OR_RETURN(
      const auto header,
      ParseGgufHeader(bytes, bytes.size(), [](const GgufMetadata&) { return absl::OkStatus(); }));
  RIVULET_ASSIGN_OR_RETURN(GgufText text, ReadGgufText(header->metadata));
  return std::move(text.text.tokenizer);
}

absl::StatusOr<std::shared_ptr<const TextTokenizer>> Parse(const std::string& path,
                                                           const std::string& bytes) {
  if (absl::EndsWith(path, ".gguf")) return OfGguf(bytes);
  return absl::EndsWith(path, ".txt") ? ParseWorldVocabulary(bytes) : ParseTokenizerJson(bytes);
}

int Run(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string vocabulary((std::istreambuf_iterator<char>(file)),
                               std::istreambuf_iterator<char>());
  const auto tokenizer = Parse(path, vocabulary);
  if (!tokenizer.ok()) {
    std::cout << "error " << GetErrorDetail(tokenizer.status()).reason << ' '
              << tokenizer.status().message() << '\n';
    return 1;
  }
  size_t size = 0;
  EncodeOptions options;
  while (std::cin >> size >> options.at_start >> options.add_special_tokens >>
         options.parse_special_tokens) {
    std::cin.get();
    std::string text(size, '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(size));
    const auto tokens = (*tokenizer)->Encode(text, options);
    if (tokens.ok()) {
      Print(**tokenizer, *tokens);
    } else {
      std::cout << "error " << GetErrorDetail(tokens.status()).reason << ' '
                << tokens.status().message() << '\n';
    }
  }
  return 0;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_texts FILE\n";
    return 2;
  }
  std::ios::sync_with_stdio(false);
  return rivulet::Run(argv[1]);
}
