// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RedisUrl Parsed(const std::string& text) {
  const absl::StatusOr<RedisUrl> url = ParseRedisUrl(text);
  EXPECT_TRUE(url.ok()) << text << ": " << url.status();
  return url.ok() ? *url : RedisUrl();
}

std::string Refused(const std::string& text) {
  const absl::StatusOr<RedisUrl> url = ParseRedisUrl(text);
  EXPECT_FALSE(url.ok()) << text;
  EXPECT_EQ(url.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(url.status()).reason, "CONFIG_INVALID");
  EXPECT_EQ(GetErrorDetail(url.status()).field, "session-store");
  return std::string(url.status().message());
}

TEST(RedisUrlTest, OneServer) {
  RedisUrl url = Parsed("redis://redis.example");
  EXPECT_FALSE(url.tls);
  EXPECT_THAT(url.addresses, ElementsAre(RedisAddress{"redis.example", 6379}));
  EXPECT_EQ(url.master, "");
  EXPECT_EQ(url.user, "");
  EXPECT_EQ(url.database, 0);

  url = Parsed("rediss://riv%3aulet%40x@10.0.0.7:7000/15");
  EXPECT_TRUE(url.tls);
  EXPECT_THAT(url.addresses, ElementsAre(RedisAddress{"10.0.0.7", 7000}));
  EXPECT_EQ(url.user, "riv:ulet@x");
  EXPECT_EQ(url.database, 15);

  EXPECT_EQ(Parsed("redis://a@b@c").user, "a@b");
  EXPECT_THAT(Parsed("redis://[::1]").addresses, ElementsAre(RedisAddress{"::1", 6379}));
  EXPECT_THAT(Parsed("redis://[fe80::2]:1/").addresses, ElementsAre(RedisAddress{"fe80::2", 1}));
}

TEST(RedisUrlTest, Sentinels) {
  RedisUrl url = Parsed("redis+sentinel://a,b:7,[::1]:65535/my.master-1_x");
  EXPECT_FALSE(url.tls);
  EXPECT_EQ(url.master, "my.master-1_x");
  EXPECT_THAT(url.addresses, ElementsAre(RedisAddress{"a", 26379}, RedisAddress{"b", 7},
                                         RedisAddress{"::1", 65535}));
  url = Parsed("rediss+sentinel://rivulet@a/main/3");
  EXPECT_TRUE(url.tls);
  EXPECT_EQ(url.user, "rivulet");
  EXPECT_EQ(url.database, 3);
}

TEST(RedisUrlTest, ErrorsNameThePartAndItsValue) {
  EXPECT_THAT(Refused("http://a"), HasSubstr("begins with no scheme of Redis"));
  EXPECT_THAT(Refused("redis:a"), HasSubstr("begins with no scheme"));
  EXPECT_THAT(Refused("redis://"), HasSubstr("host \"\""));
  EXPECT_THAT(Refused("redis://a b"), HasSubstr("host \"a b\""));
  EXPECT_THAT(Refused("redis://::1"), HasSubstr("IPv6 needs brackets"));
  EXPECT_THAT(Refused("redis://[::g]"), HasSubstr("host \"[::g]\" is no IPv6 address"));
  EXPECT_THAT(Refused("redis://[::1"), HasSubstr("host \"[::1\""));
  for (const std::string port : {"", "0", "65536", "-1", "+5", "x", "99999999999999"}) {
    EXPECT_THAT(Refused("redis://a:" + port), HasSubstr("port \"" + port + "\""));
  }
  EXPECT_THAT(Refused("redis://[::1]x"), HasSubstr("port \"x\""));
  for (const std::string database : {"x", "-1", "1/2", "1/", "2147483648"}) {
    EXPECT_THAT(Refused("redis://a/" + database), HasSubstr("database \"" + database + "\""));
  }
  EXPECT_THAT(Refused("redis://a,b"), HasSubstr("only Sentinels"));
  EXPECT_THAT(Refused("redis+sentinel://a"), HasSubstr("name of its master is \"\""));
  EXPECT_THAT(Refused("redis+sentinel://a/m n"), HasSubstr("name of its master is \"m n\""));
  EXPECT_THAT(Refused("redis+sentinel://a/m/x"), HasSubstr("database \"x\""));
  EXPECT_THAT(Refused("redis+sentinel://a,/m"), HasSubstr("host \"\""));
  EXPECT_THAT(Refused("redis://@a"), HasSubstr("user is empty"));
  EXPECT_THAT(Refused("redis://a%@b"), HasSubstr("%"));
  EXPECT_THAT(Refused("redis://a%4@b"), HasSubstr("%"));
  EXPECT_THAT(Refused("redis://a%zz@b"), HasSubstr("%"));
  EXPECT_THAT(Refused("redis://a?db=1"), HasSubstr("settings of their own"));
  EXPECT_THAT(Refused("redis://a\n"), HasSubstr("host \"a\\n\""));
}

TEST(RedisUrlTest, APasswordIsRefusedAndNotRepeated) {
  for (const std::string text :
       {"redis://:hunter2@a", "redis://user:hunter2@a", "redis://user:hunter2/x@a:1/2",
        "redis://user:@hunter2@a", "redis+sentinel://u:hunter2@a/m", "hunter2@a",
        "redis://a/?password=hunter2", "redis://u:hunter2?@a"}) {
    EXPECT_THAT(Refused(text), Not(HasSubstr("hunter2")));
  }
  EXPECT_THAT(Refused("redis://:x@a"), HasSubstr("--session-store-password-file"));
}

RedisOptions Options(const std::string& url) {
  RedisOptions options;
  options.url = Parsed(url);
  return options;
}

void ExpectRefused(const RedisOptions& options, const std::string& field,
                   const std::string& message) {
  const absl::Status status = CheckRedisOptions(options);
  EXPECT_EQ(GetErrorDetail(status).field, field) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(RedisOptionsTest, SettingsThatDoNotFitAreNamed) {
  const RedisOptions plain = Options("redis://a"), tls = Options("rediss://a");
  EXPECT_TRUE(CheckRedisOptions(plain).ok());
  EXPECT_TRUE(CheckRedisOptions(tls).ok());
  ExpectRefused(RedisOptions(), "session-store", "no host");
  ExpectRefused(Options("redis://user@a"), "session-store-password-file", "names a user");
  RedisOptions options = plain;
  options.ca_file = "ca.pem";
  ExpectRefused(options, "session-store-ca", "\"ca.pem\", and needs TLS");
  options = plain;
  options.server_name = "redis.example";
  ExpectRefused(options, "session-store-server-name", "needs TLS");
  options = tls;
  options.cert_file = "cert.pem";
  ExpectRefused(options, "session-store-cert", "needs session-store-key");
  options = tls;
  options.key_file = "key.pem";
  ExpectRefused(options, "session-store-key", "needs session-store-cert");
  options = plain;
  options.sentinel_password_file = "password";
  ExpectRefused(options, "session-store-sentinel-password-file", "redis+sentinel://");
  options = Options("redis+sentinel://a/m");
  options.sentinel_user = "u";
  ExpectRefused(options, "session-store-sentinel-user", "sentinel-password-file");
  options = plain;
  options.connect_timeout = absl::ZeroDuration();
  ExpectRefused(options, "session-store-connect-timeout", "is 0; allowed are 1 ms to 1 h");
  options = plain;
  options.call_timeout = absl::InfiniteDuration();
  ExpectRefused(options, "session-store-call-timeout", "is inf");
}

}  // namespace
}  // namespace rivulet
