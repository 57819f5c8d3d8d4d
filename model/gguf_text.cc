// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_text.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"
#include "model/text/tokenizer_rules.h"
#include "model/text/world_vocabulary.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

// The types of tokens, as GGUF numbers them.
constexpr int64_t kControl = 3, kUserDefined = 4, kUnused = 5;

constexpr char kModel[] = "tokenizer.ggml.model", kPre[] = "tokenizer.ggml.pre",
               kTokens[] = "tokenizer.ggml.tokens", kTypes[] = "tokenizer.ggml.token_type",
               kMerges[] = "tokenizer.ggml.merges", kTemplate[] = "tokenizer.chat_template";

// How texts are cut before merges, by llama.cpp's name for it. The patterns are llama.cpp's, which
// differ from those of some models' own tokenizers.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlamaPattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwenPattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Where the case of letters cuts: not a to z, then not A to Z; one of both may be empty. `end`:
// what may follow. Digits: at most three, or each alone.
std::string CasePattern(absl::string_view end, absl::string_view digits) {
  constexpr char kBefore[] = R"([^\r\n\p{L}\p{N}]?)", kUpper[] = R"((?:(?![a-z])\p{L}))",
                 kLower[] = R"((?:(?![A-Z])\p{L}))";
  return absl::StrCat(kBefore, kUpper, "*", kLower, "+", end, "|", kBefore, kUpper, "+", kLower,
                      "*", end, "|", digits, R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)",
                      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)");
}
struct Cut {
  std::vector<const char*> names;
  std::vector<std::string> patterns;  // applied one after the other
  bool ignore_merges = false;         // a piece that is a token is not merged
  bool add_bos = false;               // default, if the file does not say
};
const std::vector<Cut>& Cuts() {
  static const auto* const cuts = new std::vector<Cut>{
      {{"gpt-2", "mpt", "olmo", "granite-docling"}, {kGpt2Pattern}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"},
       {kLlamaPattern},
       true,
       true},
      {{"dbrx", "smaug-bpe"}, {kLlamaPattern}},
      {{"qwen2", "deepseek-r1-qwen"}, {kQwenPattern}},
      {{"qwen35"}, {kQwen35Pattern}},
      {{"tekken"}, {CasePattern("", R"(\p{N})")}, true, true},
      {{"gpt-4o"}, {CasePattern("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", R"(\p{N}{1,3})")}},
      {{"refact", "starcoder"}, {R"(\p{N})", kGpt2Pattern}},
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return *cuts;
}

// Writes JSON.
JsonValue Text(absl::string_view text) {
  JsonValue value;
  value.kind = Kind::kString;
  value.text = std::string(text);
  return value;
}
JsonValue Bool(bool boolean) {
  JsonValue value;
  value.kind = Kind::kBool;
  value.boolean = boolean;
  return value;
}
JsonValue Integer(int64_t integer) {
  JsonValue value;
  value.kind = Kind::kInteger;
  value.integer = integer;
  value.number = static_cast<double>(integer);
  return value;
}
JsonValue Array(std::vector<JsonValue> items) {
  JsonValue value;
  value.kind = Kind::kArray;
  value.items = std::move(items);
  return value;
}
JsonValue Object(std::vector<std::pair<const char*, JsonValue>> members) {
  JsonValue value;
  value.kind = Kind::kObject;
  for (auto& member : members) {
    value.keys.emplace_back(member.first);
    value.items.push_back(std::move(member.second));
  }
  return value;
}

class TextReader {
 public:
  explicit TextReader(const GgufMetadata& metadata) : metadata_(metadata) {}

  absl::StatusOr<GgufText> Read();

 private:
  const GgufValue* Find(absl::string_view key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  template <typename... Args>
  static absl::Status Invalid(absl::string_view key, const Args&... what) {
    return kTokenizerRules.Invalid(key, what...);
  }
  // An optional text in UTF-8.
  absl::Status ReadText(const char* key, std::optional<std::string>* out) const;
  absl::Status ReadTokens();
  absl::Status CreateWorld();
  absl::Status CreateBpe(absl::string_view pre);
  absl::Status AddMembers(const Cut& cut, JsonValue* root) const;
  absl::Status AddTemplate(const Cut& cut, JsonValue* root) const;
  absl::StatusOr<JsonValue> Vocabulary() const;
  absl::Status ReadSpecialTokens();
  // The id under `tokenizer.ggml.NAME`, if it is there.
  absl::StatusOr<std::optional<int32_t>> ReadId(absl::string_view name) const;

  const GgufMetadata& metadata_;
  std::vector<std::string> tokens_;
  std::vector<int64_t> types_;  // one per token
  GgufText out_;
};

absl::Status TextReader::ReadText(const char* key, std::optional<std::string>* out) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return absl::OkStatus();
  *out = value->Text();
  if (!out->has_value()) return Invalid(key, "is ", value->Describe(), ", not a text");
  if (ValidUtf8Bytes(**out) < (*out)->size()) return Invalid(key, "is not valid UTF-8");
  return absl::OkStatus();
}

absl::Status TextReader::ReadTokens() {
  const GgufValue* const tokens = Find(kTokens);
  auto texts = tokens == nullptr ? std::nullopt : tokens->Texts();
  if (!texts)
    return Invalid(kTokens,
                   tokens == nullptr ? "is missing" : "is no array of at most 2000000 texts");
  tokens_ = *std::move(texts);
  const GgufValue* const types = Find(kTypes);
  if (types == nullptr) {
    types_.assign(tokens_.size(), 1);
    return absl::OkStatus();
  }
  auto numbers = types->Integers();
  if (!numbers || numbers->size() != tokens_.size()) {
    return Invalid(kTypes, "is ", types->Describe(), "; allowed: a number for each of the ",
                   tokens_.size(), " tokens");
  }
  types_ = *std::move(numbers);
  return absl::OkStatus();
}

absl::Status TextReader::CreateWorld() {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (types_[id] == kUnused) tokens_[id].clear();
  }
  RIVULET_ASSIGN_OR_RETURN(out_.text.tokenizer, CreateWorldTokenizer(tokens_));
  out_.text.tokenizer_kind = "world";
  return absl::OkStatus();
}

absl::StatusOr<JsonValue> TextReader::Vocabulary() const {
  JsonValue vocabulary = Object({});
  std::set<absl::string_view> seen;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (types_[id] == kUnused) continue;
    if (ValidUtf8Bytes(tokens_[id]) < tokens_[id].size()) {
      return Invalid(kTokens, "has a token that is not valid UTF-8, ", id);
    }
    if (!seen.insert(tokens_[id]).second) {
      return Invalid(kTokens, "has the token ", Quoted(tokens_[id]), " twice, the second time as ",
                     id);
    }
    // Control tokens and other added tokens are not results of merges.
    if (types_[id] == kControl || types_[id] == kUserDefined) continue;
    vocabulary.keys.push_back(tokens_[id]);
    vocabulary.items.push_back(Integer(static_cast<int64_t>(id)));
  }
  return vocabulary;
}

// The tokens that are added before a text and behind it.
absl::Status TextReader::AddTemplate(const Cut& cut, JsonValue* root) const {
  const auto piece = [](const char* kind, const char* id) {
    return Object({{kind, Object({{"id", Text(id)}, {"type_id", Integer(0)}})}});
  };
  JsonValue single = Array({piece("Sequence", "A")}), special = Object({});
  for (const bool before : {true, false}) {
    const char* const end = before ? "bos" : "eos";
    const std::string key = absl::StrCat("tokenizer.ggml.add_", end, "_token");
    const GgufValue* const value = Find(key);
    if (value != nullptr && !value->Bool()) {
      return Invalid(key, "is ", value->Describe(), "; allowed: true and false");
    }
    if (!(value == nullptr ? before && cut.add_bos : *value->Bool())) continue;
    RIVULET_ASSIGN_OR_RETURN(const auto id, ReadId(absl::StrCat(end, "_token_id")));
    if (!id) return Invalid(key, "is true, but the file has no ", end, "_token_id");
    single.items.insert(before ? single.items.begin() : single.items.end(),
                        piece("SpecialToken", end));
    special.keys.emplace_back(end);
    special.items.push_back(Object({{"id", Text(end)}, {"ids", Array({Integer(*id)})}}));
  }
  if (single.items.size() == 1) return absl::OkStatus();
  root->keys.emplace_back("post_processor");
  root->items.push_back(Object({{"type", Text("TemplateProcessing")},
                                {"single", std::move(single)},
                                {"special_tokens", std::move(special)}}));
  return absl::OkStatus();
}

absl::Status TextReader::AddMembers(const Cut& cut, JsonValue* root) const {
  std::vector<JsonValue> steps, added;
  for (const std::string& pattern : cut.patterns) {
    steps.push_back(Object({{"type", Text("Split")},
                            {"pattern", Object({{"Regex", Text(pattern)}})},
                            {"behavior", Text("Isolated")}}));
  }
  const auto byte_level = [] {
    return Object({{"type", Text("ByteLevel")},
                   {"add_prefix_space", Bool(false)},
                   {"use_regex", Bool(false)}});
  };
  steps.push_back(byte_level());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (types_[id] != kControl && types_[id] != kUserDefined) continue;
    added.push_back(Object({{"id", Integer(static_cast<int64_t>(id))},
                            {"content", Text(tokens_[id])},
                            {"normalized", Bool(false)},
                            {"special", Bool(types_[id] == kControl)}}));
  }
  const auto add = [root](const char* key, JsonValue value) {
    root->keys.emplace_back(key);
    root->items.push_back(std::move(value));
  };
  add("version", Text("1.0"));
  add("added_tokens", Array(std::move(added)));
  add("pre_tokenizer",
      Object({{"type", Text("Sequence")}, {"pretokenizers", Array(std::move(steps))}}));
  add("decoder", byte_level());
  return AddTemplate(cut, root);
}

absl::Status TextReader::CreateBpe(absl::string_view pre) {
  const Cut* cut = nullptr;
  std::string known;
  for (const Cut& one : Cuts()) {
    for (const char* const name : one.names) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", name);
      if (name == pre) cut = &one;
    }
  }
  if (cut == nullptr) {
    return kTokenizerRules.Unsupported(kPre, "is ", Quoted(pre), "; supported: ", known);
  }
  const GgufValue* const held = Find(kMerges);
  const auto merges = held == nullptr ? std::nullopt : held->Texts();
  if (!merges)
    return Invalid(kMerges,
                   held == nullptr ? "is missing" : "is no array of at most 2000000 texts");
  std::vector<JsonValue> list;
  list.reserve(merges->size());
  for (const std::string& merge : *merges) list.push_back(Text(merge));
  RIVULET_ASSIGN_OR_RETURN(JsonValue vocabulary, Vocabulary());
  JsonValue root = Object({{"model", Object({{"type", Text("BPE")},
                                             {"vocab", std::move(vocabulary)},
                                             {"merges", Array(std::move(list))},
                                             {"ignore_merges", Bool(cut->ignore_merges)}})}});
  RIVULET_RETURN_IF_ERROR(AddMembers(*cut, &root));
  auto tokenizer = CreateJsonTokenizer(root);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), "as a tokenizer.json");
  out_.text.tokenizer = *std::move(tokenizer);
  out_.text.tokenizer_kind = absl::StrCat("gpt2 (", pre, ")");
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> TextReader::ReadId(absl::string_view name) const {
  const std::string key = absl::StrCat("tokenizer.ggml.", name);
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> id = value->Integer();
  if (!id || *id < 0 || *id >= static_cast<int64_t>(tokens_.size())) {
    return Invalid(key, "is ", value->Describe(), "; allowed: 0 to ",
                   static_cast<int64_t>(tokens_.size()) - 1);
  }
  return static_cast<int32_t>(*id);
}

absl::Status TextReader::ReadSpecialTokens() {
  // The keys, and the roles in the words of tokenizer_config.json.
  constexpr std::pair<const char*, const char*> kRoles[] = {
      {"bos_token_id", "bos_token"},     {"eos_token_id", "eos_token"},
      {"eot_token_id", "eot_token"},     {"eom_token_id", "eom_token"},
      {"unknown_token_id", "unk_token"}, {"seperator_token_id", "sep_token"},
      {"padding_token_id", "pad_token"}, {"cls_token_id", "cls_token"},
      {"mask_token_id", "mask_token"},
  };
  std::map<int32_t, std::set<std::string>> roles;
  for (const auto& [key, role] : kRoles) {
    RIVULET_ASSIGN_OR_RETURN(const std::optional<int32_t> id, ReadId(key));
    if (!id) continue;
    roles[*id].insert(role);
    const bool control = types_[static_cast<size_t>(*id)] == kControl;
    const absl::string_view name = role;
    if (name == "eos_token" || (control && (name == "eot_token" || name == "eom_token"))) {
      out_.ends.push_back(*id);
    }
  }
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (types_[id] == kControl) roles[static_cast<int32_t>(id)];
  }
  for (const auto& [id, names] : roles) {
    out_.text.special_tokens.push_back(
        {id, std::string(out_.text.tokenizer->TokenBytes(id)), {names.begin(), names.end()}});
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufText> TextReader::Read() {
  std::optional<std::string> model, pre, chat_template;
  RIVULET_RETURN_IF_ERROR(ReadText(kModel, &model));
  RIVULET_RETURN_IF_ERROR(ReadText(kPre, &pre));
  RIVULET_RETURN_IF_ERROR(ReadText(kTemplate, &chat_template));
  out_.text.chat_template = chat_template.value_or("");
  if (!model || *model == "none" || *model == "no_vocab") {
    out_.text.why_none = ": its file has none";
    return std::move(out_);
  }
  RIVULET_RETURN_IF_ERROR(ReadTokens());
  if (*model == "rwkv") {
    RIVULET_RETURN_IF_ERROR(CreateWorld());
    UseBuiltInTemplate(&out_.text);
  } else if (*model == "gpt2") {
    RIVULET_RETURN_IF_ERROR(CreateBpe(pre.value_or("default")));
  } else {
    return kTokenizerRules.Unsupported(kModel, "is ", Quoted(*model), "; supported: rwkv, gpt2");
  }
  RIVULET_RETURN_IF_ERROR(ReadSpecialTokens());
  return std::move(out_);
}

}  // namespace

absl::StatusOr<GgufText> ReadGgufText(const GgufMetadata& metadata) {
  return TextReader(metadata).Read();
}

}  // namespace rivulet
