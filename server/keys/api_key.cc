// SPDX-License-Identifier: Apache-2.0
#include "server/keys/api_key.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/model_name.h"
#include "server/keys/key_json.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

constexpr JsonLimits kJsonLimits{/*max_depth=*/4, /*max_values=*/size_t{1} << 20};
constexpr absl::string_view kNameRule = "1 to 64 of A-Z a-z 0-9 . _ -";

absl::Status Wrong(absl::string_view path, const JsonValue& value, absl::string_view rule) {
  return InvalidField("CONFIG_INVALID", path,
                      absl::StrCat(path, " is ", Describe(value), "; it must be ", rule));
}

// Reads one member into a key.
using ReadMember = absl::Status (*)(const std::string& path, const JsonValue& value, ApiKey* key);

absl::Status ReadTenantName(const std::string& path, const JsonValue& value, std::string* name) {
  if (value.kind != Kind::kString || !IsTenantName(value.text)) {
    return Wrong(path, value, kNameRule);
  }
  *name = value.text;
  return absl::OkStatus();
}

absl::Status ReadHash(const std::string& path, const JsonValue& value, ApiKey* key) {
  const bool is_hex = value.kind == Kind::kString && value.text.size() == 2 * key->hash.size() &&
                      std::all_of(value.text.begin(), value.text.end(), [](char c) {
                        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                      });
  if (!is_hex) {
    // Not quoted: the value may be the key itself, by mistake.
    const std::string held = value.kind == Kind::kString
                                 ? absl::StrCat("a text of ", value.text.size(), " characters")
                                 : Describe(value);
    return InvalidField("CONFIG_INVALID", path,
                        absl::StrCat(path, " is ", held,
                                     "; it must be the SHA-256 of the key: 64 digits of 0-9 a-f"));
  }
  const std::string bytes = absl::HexStringToBytes(value.text);
  std::copy(bytes.begin(), bytes.end(), key->hash.begin());
  return absl::OkStatus();
}

absl::Status ReadModels(const std::string& path, const JsonValue& value, ApiKey* key) {
  if (value.kind != Kind::kArray || value.items.empty()) {
    return Wrong(path, value, "a list of at least one model's name; without it all are allowed");
  }
  ModelNames& names = key->models.emplace();
  for (size_t i = 0; i < value.items.size(); ++i) {
    const JsonValue& item = value.items[i];
    const std::string at = absl::StrCat(path, "[", i, "]");
    if (item.kind != Kind::kString || !IsModelName(item.text)) {
      return Wrong(at, item, absl::StrCat("the name of a model: ", kModelNamePattern));
    }
    if (!names.insert(item.text).second) return Wrong(at, item, "named once");
  }
  return absl::OkStatus();
}

absl::Status ReadAdmin(const std::string& path, const JsonValue& value, ApiKey* key) {
  if (value.kind != Kind::kBool) return Wrong(path, value, "true or false");
  key->admin = value.boolean;
  return absl::OkStatus();
}

absl::Status ReadExpires(const std::string& path, const JsonValue& value, ApiKey* key) {
  const auto time = ParseExpiry(value.kind == Kind::kString ? value.text : "");
  if (!time.ok()) return Wrong(path, value, time.status().message());
  key->expires = *time;
  return absl::OkStatus();
}

// `limit`: an index of kKeyLimits.
template <size_t limit>
absl::Status ReadLimit(const std::string& path, const JsonValue& value, ApiKey* key) {
  if (value.kind != Kind::kInteger || value.integer < 1 || value.integer > kMaxKeyLimit) {
    return Wrong(path, value,
                 absl::StrCat("a whole number from 1 to ", kMaxKeyLimit,
                              "; without it there is no such limit"));
  }
  key->limits.*kKeyLimits[limit].value = value.integer;
  return absl::OkStatus();
}

struct Member {
  absl::string_view name;
  bool required;
  ReadMember read;
};

constexpr Member kMembers[] = {
    {"name", true,
     [](const std::string& path, const JsonValue& value, ApiKey* key) {
       return ReadTenantName(path, value, &key->name);
     }},
    {"sha256", true, ReadHash},
    {"tenant", true,
     [](const std::string& path, const JsonValue& value, ApiKey* key) {
       return ReadTenantName(path, value, &key->tenant);
     }},
    {"models", false, ReadModels},
    {"admin", false, ReadAdmin},
    {"expires", false, ReadExpires},
    {kKeyLimits[0].name, false, ReadLimit<0>},
    {kKeyLimits[1].name, false, ReadLimit<1>},
    {kKeyLimits[2].name, false, ReadLimit<2>},
    {kKeyLimits[3].name, false, ReadLimit<3>},
    {kKeyLimits[4].name, false, ReadLimit<4>},
};

absl::StatusOr<ApiKey> ReadKey(const std::string& path, const JsonValue& value) {
  if (value.kind != Kind::kObject) return Wrong(path, value, "an object");
  ApiKey key;
  for (const Member& member : kMembers) {
    const std::string at = absl::StrCat(path, ".", member.name);
    const JsonValue* const found = value.Find(member.name);
    if (found != nullptr) {
      RIVULET_RETURN_IF_ERROR(member.read(at, *found, &key));
    } else if (member.required) {
      return InvalidField("CONFIG_INVALID", at, absl::StrCat(at, " is missing"));
    }
  }
  for (const std::string& name : value.keys) {
    const auto* const found = std::find_if(std::begin(kMembers), std::end(kMembers),
                                           [&](const Member& m) { return m.name == name; });
    if (found != std::end(kMembers)) continue;
    const auto append = [](std::string* out, const Member& m) {
      out->append(m.name.data(), m.name.size());
    };
    return InvalidField("CONFIG_INVALID", path,
                        absl::StrCat(path, " has the member ", Quoted(name),
                                     "; there are: ", absl::StrJoin(kMembers, ", ", append)));
  }
  return key;
}

}  // namespace

KeyHash HashOf(absl::string_view key) {
  KeyHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

bool SameHash(const KeyHash& a, const KeyHash& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

std::string ExpiryText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

absl::StatusOr<absl::Time> ParseExpiry(absl::string_view text) {
  absl::Time time;
  std::string ignored;
  // Abseil accepts more than RFC 3339: surrounding spaces, and "infinite-future".
  const bool plain = text.size() >= 20 &&
                     absl::ascii_isdigit(static_cast<unsigned char>(text[0])) &&
                     !absl::ascii_isspace(static_cast<unsigned char>(text.back()));
  if (plain && absl::ParseTime(absl::RFC3339_full, text, &time, &ignored)) return time;
  return InvalidField("CONFIG_INVALID", "", "a time of RFC 3339, for example 2027-01-31T00:00:00Z");
}

absl::StatusOr<std::vector<ApiKey>> ParseKeys(absl::string_view text) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue list, ParseStrictJson(text, kJsonLimits));
  if (list.kind != Kind::kArray) return Wrong("the file", list, "a list of keys");
  std::vector<ApiKey> keys;
  std::map<std::string, size_t> names;
  std::map<KeyHash, size_t> hashes;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const std::string path = absl::StrCat("[", i, "]");
    RIVULET_ASSIGN_OR_RETURN(ApiKey key, ReadKey(path, list.items[i]));
    const auto [same_name, new_name] = names.emplace(key.name, i);
    const auto [same_hash, new_hash] = hashes.emplace(key.hash, i);
    if (!new_name || !new_hash) {
      const std::string member = new_name ? "sha256" : "name";
      const size_t other = new_name ? same_hash->second : same_name->second;
      const std::string at = absl::StrCat(path, ".", member);
      return InvalidField("CONFIG_INVALID", at,
                          absl::StrCat(at, " is ", Describe(*list.items[i].Find(member)),
                                       ", which [", other, "] has"));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

absl::StatusOr<std::vector<ApiKey>> ReadKeys(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxKeyFileBytes);
  absl::StatusOr<std::vector<ApiKey>> keys =
      text.ok() ? ParseKeys(*text) : absl::StatusOr<std::vector<ApiKey>>(text.status());
  if (keys.ok()) return keys;
  return Annotate(keys.status(), absl::StrCat("keys-file ", path));
}

nlohmann::ordered_json KeyToJson(const ApiKey& key) {
  nlohmann::ordered_json json;
  json["name"] = key.name;
  json["sha256"] = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(key.hash.data()), key.hash.size()));
  json["tenant"] = key.tenant;
  if (key.models) json["models"] = *key.models;
  if (key.admin) json["admin"] = true;
  if (key.expires != absl::InfiniteFuture()) json["expires"] = ExpiryText(key.expires);
  for (const KeyLimit& limit : kKeyLimits) {
    if (key.limits.*limit.value > 0) json[std::string(limit.name)] = key.limits.*limit.value;
  }
  return json;
}

std::string KeysToJson(const std::vector<ApiKey>& keys) {
  auto list = nlohmann::ordered_json::array();
  for (const ApiKey& key : keys) list.push_back(KeyToJson(key));
  return absl::StrCat(list.dump(2), "\n");
}

}  // namespace rivulet
