// SPDX-License-Identifier: Apache-2.0
// program HOST:PORT: generates ten tokens with seed 1 and prints them; the exit code is 0 if that
// went well.
#include <rivulet/client.h>
#include <rivulet/multiplex.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  absl::StatusOr<rivulet::Client> client = rivulet::Client::Connect(argv[1]);
  if (!client.ok()) return 2;

  rivulet::v1::GenerateRequest request;
  request.mutable_tokens();
  request.set_max_tokens(10);
  request.mutable_sampling()->set_seed(1);
  absl::Status status = client->Generate(request, [](const rivulet::v1::GenerateReply& part) {
    for (const int token : part.tokens()) std::cout << token << ' ';
    return true;
  });
  std::cout << '\n';
  if (!status.ok() || !client->Multiplex()->Finish().ok()) return 1;

  request.mutable_sampling()->set_top_p(7);
  status = client->Generate(request, [](const rivulet::v1::GenerateReply&) { return true; });
  std::cout << rivulet::GetErrorInfo(status).field << '\n';
  return status.code() == absl::StatusCode::kInvalidArgument ? 0 : 1;
}
