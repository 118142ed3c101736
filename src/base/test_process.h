#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace graft::test {

// Runs one disabled test in a process of its own and returns what it printed; `environment` are arguments of env(1).
// For what a process settles once. No death test: under the thread sanitizer googletest's hang.
inline std::string run_in_own_process(const std::string& disabled_test, const std::string& environment = {}) {
  char self[4096] = {};
  EXPECT_GT(::readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  const std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " + environment + " '" + self +
                              "' --gtest_also_run_disabled_tests --gtest_filter=" + disabled_test + " 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return {};
  }
  std::string printed;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) printed += static_cast<char>(c);
  EXPECT_EQ(::pclose(pipe), 0) << printed;
  return printed;
}

}  // namespace graft::test
