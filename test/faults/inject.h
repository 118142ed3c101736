#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <typeinfo>

#include "base/check.h"
#include "faults.h"
#include "graft/graft.h"

// Runs an operation again and again, with the first, the second, ... call of a layer failing, until it succeeds without
// a fault (as SQLite's tests do). Each failure must be an error of graft's and leave memory, descriptors and threads as
// they were; the next try must give the same result.
namespace graft::faults {

inline std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Whether there are no more than so many threads. The system lists a thread for a moment after it was joined.
inline bool threads_end(std::size_t count) {
  for (int wait = 0; wait < 1000; ++wait) {
    if (entries("/proc/self/task") <= count) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// What a process holds.
struct Held {
  long blocks = graft_faults_live_blocks();
  std::size_t descriptors = entries("/proc/self/fd");
  std::size_t threads = entries("/proc/self/task");
};

struct Fault {
  const char* layer;
  const char* fault = "";
  bool every = false;

  std::string name() const { return str(layer, *fault ? "_" : "", fault, every ? "_every" : ""); }
};

struct Operation {
  std::string name;
  // Does the whole operation and returns the bits of its results. What it made is gone when it returns or throws.
  std::function<std::string()> work;
  // After a failure, before the next try: checks what must not have changed.
  std::function<void()> after_failure = [] {};
  // Blocks that a success may leave allocated for good: caches of the process.
  long cached_blocks = 0;
};

// Counts: calls that failed, and those that ended in an error of graft's; the
// others were survived with the right result.
struct Tried {
  long faults = 0, errors = 0;
};

// Does the operation with the n-th call failing. Returns whether there was such a call.
inline bool fails_at(const Operation& operation, const Fault& fault, long n, const std::string& expected,
                     const std::string& where, bool& failed) {
  std::string result, error;
  long calls = 0;
  graft_faults_arm(fault.layer, n, fault.fault, fault.every);
  try {
    result = operation.work();
    calls = graft_faults_disarm();
  } catch (const Error& e) {
    calls = graft_faults_disarm();
    error = e.what();
    EXPECT_FALSE(error.empty()) << where;
  } catch (const std::bad_alloc& e) {  // of the test's own code: boundaries_test.cpp has what leaves graft
    calls = graft_faults_disarm();
    error = e.what();
  } catch (const std::exception& e) {
    calls = graft_faults_disarm();
    ADD_FAILURE() << where << ": " << typeid(e).name() << " left graft: " << e.what();
    error = "foreign";
  } catch (...) {
    calls = graft_faults_disarm();
    ADD_FAILURE() << where << ": an exception that is none of graft's left it";
    error = "foreign";
  }
  failed = !error.empty();
  if (failed)
    operation.after_failure();
  else
    EXPECT_EQ(result, expected) << where;
  EXPECT_TRUE(calls >= n || !failed) << where << ": failed without a fault";
  return calls >= n;
}

// Every `stride`-th call fails, beginning with the first: 1 for all.
inline Tried inject(const Operation& operation, const Fault& fault, long stride = 1) {
  const std::string expected = operation.work();
  EXPECT_EQ(operation.work(), expected) << operation.name << ": differs without a fault";
  Tried tried;
  for (long n = 1;; n += stride) {
    const std::string where = str(operation.name, ", ", fault.name(), ", call ", n);
    // What only the first failure keeps is a cache of the process; a leak grows with each.
    bool grew = true;
    for (int attempt = 0; grew && attempt < 2; ++attempt) {
      const Held before;
      bool failed = false;
      if (!fails_at(operation, fault, n, expected, where, failed)) return tried;
      if (attempt == 0) {
        ++tried.faults;
        tried.errors += failed;
      }
      EXPECT_EQ(operation.work(), expected) << where << ": the next try";
      // After it, as some lists drop what is gone when they are used next.
      const Held after;
      grew = after.blocks > before.blocks + operation.cached_blocks;
      EXPECT_EQ(after.descriptors, before.descriptors) << where;
      EXPECT_TRUE(threads_end(before.threads)) << where;
    }
    EXPECT_FALSE(grew) << where << ": memory is not freed";
    if (::testing::Test::HasFailure()) return tried;
  }
}

// Prints a row: operation, kind of fault, faults, errors.
inline void report(const std::string& operation, const Fault& fault, const Tried& tried) {
  std::printf("FAULTS %s | %s | %ld | %ld\n", operation.c_str(), fault.name().c_str(), tried.faults, tried.errors);
}

}  // namespace graft::faults
