// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/tested_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "tests/support/paths.h"

namespace rivulet::testing {

std::vector<std::string> GoldenDirectories() {
  std::vector<std::string> parents = {SourcePath("tests/conformance/models"),
                                      SourcePath("tests/conformance/softmax")};
  if (!BundledModelsAreTooLarge()) parents.push_back(SourcePath("model/zoo"));
  std::vector<std::string> directories;
  for (const std::string& parent : parents) {
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      if (entry.is_directory()) directories.push_back(entry.path().string());
    }
  }
  std::sort(directories.begin(), directories.end());
  return directories;
}

ModelConfig TestedBackend::Config() const {
  ModelConfig config = TinyConfig();
  config.encoder().softmax = softmax;
  config.encoder().window = window;
  config.SetDefaultContext();
  return config;
}

std::vector<TestedBackend> TestedAttention() {
  std::vector<TestedBackend> all = TestedBackends();
  for (const TestedBackend& plain : TestedBackends()) {
    for (const int window : {0, 70}) {
      TestedBackend& tested = all.emplace_back(plain);
      tested.name += window == 0 ? "_softmax" : "_window";
      tested.softmax = true;
      tested.window = window;
    }
  }
  return all;
}

std::string TestName(const std::string& path, const std::string& suffix) {
  std::string name = path.substr(path.rfind('/') + 1) + "_" + suffix;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

std::vector<Record> PollAll(Backend& backend) {
  std::vector<Record> records;
  while (true) {
    const absl::StatusOr<bool> complete = backend.Poll(&records);
    if (!complete.ok()) {
      ADD_FAILURE() << complete.status();
      return records;
    }
    if (*complete) return records;
  }
}

}  // namespace rivulet::testing
