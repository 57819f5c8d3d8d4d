// SPDX-License-Identifier: Apache-2.0
#include "server/config/otlp_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

TEST(OtlpEndpointTest, SchemeDecidesOnTls) {
  const auto plain = ParseOtlpEndpoint("http://127.0.0.1:4318");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->target, "127.0.0.1:4318");
  EXPECT_FALSE(plain->tls);
  const auto secure = ParseOtlpEndpoint("https://collector.example:1");
  ASSERT_TRUE(secure.ok()) << secure.status();
  EXPECT_EQ(secure->target, "collector.example:1");
  EXPECT_TRUE(secure->tls);
}

TEST(OtlpEndpointTest, PortAndSlashMayBeLeftOut) {
  for (const auto& [text, target] :
       {std::pair("http://collector", "collector:4317"),
        std::pair("http://collector/", "collector:4317"), std::pair("https://[::1]", "[::1]:4317"),
        std::pair("https://[::1]:9/", "[::1]:9")}) {
    const auto endpoint = ParseOtlpEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->target, target);
  }
}

TEST(OtlpEndpointTest, ErrorsNameTheSettingAndItsValue) {
  for (const auto& [text, mention] :
       {std::pair("collector:4317", "it must begin with http:// or https://"),
        std::pair("HTTP://collector:4317", "it must begin with"),
        std::pair("grpc://a:1", "it must begin with"),
        std::pair("unix:/run/collector", "it must begin with"),
        std::pair("http://", "it needs a host"), std::pair("http://:4317", "it needs a host"),
        std::pair("http://a:0", "port of 1 to 65535"),
        std::pair("http://a:65536", "port of 1 to 65535"),
        std::pair("http://a:x", "port of 1 to 65535"),
        std::pair("http://::1:4317", "IPv6 address in brackets"),
        std::pair("http://a:4318/v1/traces", "OTLP over HTTP, which is not supported"),
        std::pair("http://user@a:1", "its host is no name"),
        std::pair("http://a b:1", "its host is no name"),
        std::pair("http://[]:1", "its host is no name")}) {
    const absl::Status status = ParseOtlpEndpoint(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(GetErrorDetail(status).reason, "CONFIG_INVALID");
    EXPECT_EQ(GetErrorDetail(status).field, "otlp-endpoint");
    EXPECT_THAT(std::string(status.message()), HasSubstr(mention));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("is \"") + text + "\""));
  }
}

}  // namespace
}  // namespace rivulet
