// SPDX-License-Identifier: Apache-2.0
// `model` of tokenizer.json, read and checked.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/text/bpe.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {

absl::Status BpeModel::ReadVocabulary(JsonReader* fields) {
  constexpr char kField[] = "vocab";
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* found, fields->Get(kField, JsonValue::Kind::kObject));
  const JsonValue& vocabulary = *found;
  int64_t most = -1;
  for (size_t i = 0; i < vocabulary.items.size(); ++i) {
    const JsonValue& id = vocabulary.items[i];
    if (id.kind != JsonValue::Kind::kInteger || id.integer < 0 || id.integer >= kMaxVocabularyIds) {
      return fields->Invalid(kField, "gives ", Quoted(vocabulary.keys[i]), " the id ", Describe(id),
                             "; allowed: whole numbers from 0 to ", kMaxVocabularyIds - 1);
    }
    if (vocabulary.keys[i].empty()) return fields->Invalid(kField, "has an empty token");
    most = std::max(most, id.integer);
  }
  tokens_.resize(static_cast<size_t>(most + 1));
  ids_.reserve(vocabulary.items.size());
  for (size_t i = 0; i < vocabulary.items.size(); ++i) {
    std::string& token = tokens_[static_cast<size_t>(vocabulary.items[i].integer)];
    if (!token.empty()) {
      return fields->Invalid(kField, "gives both ", Quoted(token), " and ",
                             Quoted(vocabulary.keys[i]), " the id ", vocabulary.items[i].integer);
    }
    token = vocabulary.keys[i];
    ids_.emplace(token, static_cast<int32_t>(vocabulary.items[i].integer));
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerge(absl::string_view left, absl::string_view right, int32_t rank,
                                absl::string_view path) {
  const std::string merged = absl::StrCat(left, right);
  for (const absl::string_view token : {left, right, absl::string_view(merged)}) {
    if (IdOf(token) < 0) {
      return kTokenizerRules.Invalid(path, "merges ", Quoted(left), " and ", Quoted(right),
                                     ", and ", Quoted(token), " is no token");
    }
  }
  if (!merges_.emplace(Pair(IdOf(left), IdOf(right)), Merge{rank, IdOf(merged)}).second) {
    return kTokenizerRules.Invalid(path, "merges ", Quoted(left), " and ", Quoted(right),
                                   " a second time");
  }
  crossed_.insert(
      Pair(static_cast<int32_t>(EndsOf(left).last), static_cast<int32_t>(EndsOf(right).first)));
  return absl::OkStatus();
}

absl::Status BpeModel::ReadMerges(JsonReader* fields) {
  const auto is_text = [](const JsonValue& part) { return part.kind == JsonValue::Kind::kString; };
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* merges, fields->Get("merges", JsonValue::Kind::kArray));
  merges_.reserve(merges->items.size());
  int32_t rank = 0;
  return fields->ForEach("merges", [&](const JsonValue& item, absl::string_view at) {
    if (is_text(item)) {  // "left right"
      const std::vector<absl::string_view> parts = absl::StrSplit(item.text, ' ');
      if (parts.size() == 2) return AddMerge(parts[0], parts[1], rank++, at);
      return kTokenizerRules.Invalid(at, "is ", Quoted(item.text),
                                     ", not two tokens with a space between");
    }
    if (item.kind == JsonValue::Kind::kArray && item.items.size() == 2 && is_text(item.items[0]) &&
        is_text(item.items[1])) {
      return AddMerge(item.items[0].text, item.items[1].text, rank++, at);
    }
    return kTokenizerRules.Invalid(at, "is ", Describe(item), ", not two tokens");
  });
}

absl::Status BpeModel::ReadOptions(JsonReader* fields) {
  RIVULET_RETURN_IF_ERROR(fields->Only("dropout", "null"));
  for (const absl::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (fields->Find(key) == nullptr) continue;
    std::string affix;
    RIVULET_RETURN_IF_ERROR(fields->Text(key, &affix));
    if (affix.empty()) continue;
    return fields->Unsupported(key, "is ", Quoted(affix), "; supported: none");
  }
  RIVULET_RETURN_IF_ERROR(fields->Bool("fuse_unk", &fuse_unk_, false));
  RIVULET_RETURN_IF_ERROR(fields->Bool("ignore_merges", &ignore_merges_, false));
  if (fields->Find("unk_token") != nullptr) {
    std::string unk;
    RIVULET_RETURN_IF_ERROR(fields->Text("unk_token", &unk));
    unk_id_ = IdOf(unk);
    if (unk_id_ < 0) {
      return fields->Invalid("unk_token", "is ", Quoted(unk), ", which is no token");
    }
  }
  bool byte_fallback = false;
  RIVULET_RETURN_IF_ERROR(fields->Bool("byte_fallback", &byte_fallback, false));
  if (!byte_fallback) return absl::OkStatus();
  byte_ids_.emplace();
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string token = absl::StrFormat("<0x%02X>", byte);
    (*byte_ids_)[byte] = IdOf(token);
    if (IdOf(token) < 0) {
      return fields->Invalid("byte_fallback", "is true, and ", token, " is no token");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BpeModel> BpeModel::Create(const JsonValue& model, absl::string_view path) {
  BpeModel made;
  if (TypeOf(model) == "WordLevel") {
    RIVULET_ASSIGN_OR_RETURN(JsonReader fields, JsonReader::Of(kTokenizerRules, model, path,
                                                               {"type", "vocab", "unk_token"}));
    RIVULET_RETURN_IF_ERROR(made.ReadVocabulary(&fields));
    // As in `tokenizers`, a file may name a token that the vocabulary lacks.
    std::string unk;
    if (fields.Find("unk_token") != nullptr)
      RIVULET_RETURN_IF_ERROR(fields.Text("unk_token", &unk));
    made.unk_id_ = made.IdOf(unk);
    made.whole_pieces_ = true;
    return made;
  }
  if (TypeOf(model) != "BPE") {
    return UnsupportedType(model, path, "BPE, WordLevel");
  }
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader fields,
      JsonReader::Of(
          kTokenizerRules, model, path,
          {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  RIVULET_RETURN_IF_ERROR(made.ReadVocabulary(&fields));
  RIVULET_RETURN_IF_ERROR(made.ReadMerges(&fields));
  RIVULET_RETURN_IF_ERROR(made.ReadOptions(&fields));
  return made;
}

}  // namespace rivulet
