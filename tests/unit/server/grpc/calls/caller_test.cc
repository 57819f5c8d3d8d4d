// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/caller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Metadata = Callers::Metadata;

class CallerTest : public ::testing::Test {
 protected:
  CallerTest() {
    ApiKey user, admin, expired;
    user.name = user.tenant = "user";
    user.hash = HashOf("user-key");
    user.models = ModelNames{"m"};
    user.limits.requests_per_minute = 2;
    admin.name = "admin";
    admin.tenant = "ops";
    admin.hash = HashOf("admin-key");
    admin.admin = true;
    expired.name = expired.tenant = "expired";
    expired.hash = HashOf("expired-key");
    expired.expires = absl::FromUnixSeconds(1700000000);
    std::ofstream(directory_.File("keys.json")) << KeysToJson({user, admin, expired});
    auto keys = KeyRing::Create(directory_.File("keys.json"), absl::Now());
    EXPECT_TRUE(keys.ok()) << keys.status();
    keys_ = *std::move(keys);
  }

  // The code and reason of a call with this metadata; "" where it may be made.
  std::string Refusal(const Metadata& metadata, Role role = Role::kClient) {
    const absl::Status status = Callers(keys_.get()).Check(metadata, role);
    if (status.ok()) return "";
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("-key"))) << "quotes the key";
    return absl::StatusCodeToString(status.code()) + " " + GetErrorDetail(status).reason;
  }

  testing::TempDir directory_;
  std::unique_ptr<KeyRing> keys_;
};

TEST_F(CallerTest, WithoutKeysACallerNamesItsTenant) {
  const Callers callers(nullptr);
  EXPECT_FALSE(callers.need_keys());
  EXPECT_EQ(callers.CallerOf(Metadata{}, Role::kClient)->tenant, "");
  const auto caller =
      callers.CallerOf(Metadata{{"rivulet-tenant", "t.1"}, {"authorization", "x"}}, Role::kClient);
  EXPECT_EQ(caller->tenant, "t.1");
  EXPECT_EQ(caller->models(), nullptr);
  EXPECT_TRUE(callers.Check(Metadata{}, Role::kAdmin).ok());
  for (const Metadata& bad : {Metadata{{"rivulet-tenant", "a b"}}, Metadata{{"rivulet-tenant", ""}},
                              Metadata{{"rivulet-tenant", "a"}, {"rivulet-tenant", "a"}}}) {
    EXPECT_EQ(GetErrorDetail(callers.CallerOf(bad, Role::kClient).status()).reason,
              "TENANT_MALFORMED");
  }
}

TEST_F(CallerTest, AKeySaysWhoseTheCallIs) {
  const Callers callers(keys_.get());
  const auto caller =
      callers.CallerOf(Metadata{{"authorization", "Bearer user-key"}}, Role::kClient);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->tenant, "user");
  EXPECT_THAT(*caller->models(), ::testing::ElementsAre("m"));
  const auto admin =
      callers.CallerOf(Metadata{{"authorization", "bearer admin-key"}}, Role::kAdmin);
  ASSERT_TRUE(admin.ok()) << admin.status();
  EXPECT_EQ(admin->tenant, "ops");
  EXPECT_EQ(admin->models(), nullptr);
}

TEST_F(CallerTest, OtherKeysAreRefused) {
  EXPECT_EQ(Refusal({}), "UNAUTHENTICATED API_KEY_MISSING");
  for (const char* value : {"", "Bearer", "Bearer ", "user-key", "Basic user-key",
                            "Bearer  user-key", "Bearer user-key ", "Bearer user\x01-key"}) {
    EXPECT_EQ(Refusal({{"authorization", value}}), "UNAUTHENTICATED API_KEY_MALFORMED") << value;
  }
  const std::string long_key = "Bearer " + std::string(513, 'k');
  EXPECT_EQ(Refusal({{"authorization", long_key}}), "UNAUTHENTICATED API_KEY_MALFORMED");
  EXPECT_EQ(Refusal({{"authorization", "Bearer user-key"}, {"authorization", "Bearer user-key"}}),
            "UNAUTHENTICATED API_KEY_MALFORMED");
  EXPECT_EQ(Refusal({{"authorization", "Bearer other-key"}}), "UNAUTHENTICATED API_KEY_UNKNOWN");
  EXPECT_EQ(Refusal({{"authorization", "Bearer User-key"}}), "UNAUTHENTICATED API_KEY_UNKNOWN");
  EXPECT_EQ(Refusal({{"authorization", "Bearer expired-key"}}), "UNAUTHENTICATED API_KEY_EXPIRED");
}

TEST_F(CallerTest, AdminsHaveKeysOfTheirOwn) {
  EXPECT_EQ(Refusal({{"authorization", "Bearer admin-key"}}, Role::kAdmin), "");
  EXPECT_EQ(Refusal({{"authorization", "Bearer user-key"}}, Role::kAdmin),
            "PERMISSION_DENIED API_KEY_NOT_ADMIN");
  EXPECT_EQ(Refusal({}, Role::kAdmin), "UNAUTHENTICATED API_KEY_MISSING");
}

TEST_F(CallerTest, ATenantBesideAKeyMustBeThatOfTheKey) {
  const std::pair<grpc::string_ref, grpc::string_ref> key{"authorization", "Bearer user-key"};
  EXPECT_EQ(Refusal({key, {"rivulet-tenant", "user"}}), "");
  EXPECT_EQ(Refusal({key, {"rivulet-tenant", "ops"}}), "PERMISSION_DENIED API_KEY_TENANT");
  EXPECT_EQ(Refusal({key, {"rivulet-tenant", "user"}, {"rivulet-tenant", "user"}}),
            "INVALID_ARGUMENT TENANT_MALFORMED");
}

TEST_F(CallerTest, RequestsCountForTheKeyAndFindingTheCallerDoesNot) {
  const Callers callers(keys_.get());
  const auto find = [&](const char* key, Role role = Role::kClient) {
    return callers.CallerOf(Metadata{{"authorization", key}}, role);
  };
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(find("Bearer user-key").ok());
    EXPECT_TRUE(callers.Check({{"authorization", "Bearer user-key"}}, Role::kClient).ok());
  }
  EXPECT_TRUE(find("Bearer user-key")->TakeRequest().ok());
  EXPECT_TRUE(find("Bearer user-key")->TakeRequest().ok());
  const absl::Status refused = find("Bearer user-key")->TakeRequest();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused).reason, "API_KEY_REQUEST_RATE");
  EXPECT_GT(GetErrorDetail(refused).retry_after, absl::ZeroDuration());
  EXPECT_LE(GetErrorDetail(refused).retry_after, absl::Seconds(30));
  EXPECT_TRUE(find("Bearer admin-key", Role::kAdmin)->TakeRequest().ok());
  EXPECT_TRUE(Callers(nullptr).CallerOf({}, Role::kClient)->TakeRequest().ok());
}

}  // namespace
}  // namespace rivulet
