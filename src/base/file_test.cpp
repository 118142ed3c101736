#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/test_errors.h"
#include "graft/error.h"
#include "weight/test_container.h"

namespace graft {
namespace {

using test::bytes_of;
using test::expect_error;
using ::testing::ElementsAre;

class NewFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) out.insert(entry.path().filename());
    return out;
  }
  test::TemporaryFolder folder_;
};

TEST_F(NewFileTest, ReplacesTheOldOneWhenItIsWhole) {
  const std::string to = folder_.write("a", bytes_of(3));
  {
    NewFile file(to);
    file.write(bytes_of(8, 9), 2);
    file.write(bytes_of(2, 1), 0);
    file.resize(12);
    EXPECT_EQ(std::filesystem::file_size(to), 3u);
    EXPECT_EQ(names().size(), 2u);
    file.commit();
  }
  EXPECT_EQ(std::filesystem::file_size(to), 12u);
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(NewFileTest, WithoutCommitNothingHasChanged) {
  const std::string to = folder_.write("a", bytes_of(3));
  {
    NewFile file(to);
    file.write(bytes_of(8), 0);
  }
  EXPECT_EQ(std::filesystem::file_size(to), 3u);
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(NewFileTest, TheNextOneRemovesWhatAnEndedProcessLeft) {
  folder_.write("a.77.1.graft.tmp", bytes_of(3));
  folder_.write("other.88.1.graft.tmp", bytes_of(3));
  folder_.write("mine.tmp", bytes_of(3));
  std::filesystem::create_directory(path("folder.graft.tmp"));
  std::filesystem::create_symlink(path("mine.tmp"), path("link.graft.tmp"));
  ASSERT_EQ(::mkfifo(path("pipe.graft.tmp").c_str(), 0600), 0);
  const std::string busy = folder_.write("busy.99.1.graft.tmp", bytes_of(3));
  const int writer = ::open(busy.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  NewFile(path("b")).commit();
  const std::set<std::string> left = names();
  EXPECT_FALSE(left.contains("a.77.1.graft.tmp"));
  EXPECT_FALSE(left.contains("other.88.1.graft.tmp"));
  for (const char* name : {"b", "mine.tmp", "folder.graft.tmp", "link.graft.tmp", "busy.99.1.graft.tmp"})
    EXPECT_TRUE(left.contains(name)) << name;
  ::close(writer);  // as when its process ends
  NewFile(path("b")).commit();
  EXPECT_FALSE(names().contains("busy.99.1.graft.tmp"));
}

TEST_F(NewFileTest, OneOfAnotherWriterStays) {
  NewFile first(path("a")), second(path("a"));
  first.write(bytes_of(1), 0);
  second.write(bytes_of(2), 0);
  first.commit();
  second.commit();
  EXPECT_EQ(std::filesystem::file_size(path("a")), 2u);
}

TEST_F(NewFileTest, ErrorsNameThePath) {
  expect_error<SystemError>([&] { NewFile(path("no/such/folder")); }, "no/such/folder");
  std::filesystem::create_directory(path("folder"));
  expect_error<SystemError>([&] { NewFile(path("folder")).commit(); }, "folder");
  EXPECT_THAT(names(), ElementsAre("folder"));
}

TEST_F(NewFileTest, ANameWithoutAFolderIsHere) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  folder_.write("a.77.1.graft.tmp", bytes_of(3));
  NewFile("b").commit();
  std::filesystem::current_path(before);
  EXPECT_THAT(names(), ElementsAre("b"));
}

}  // namespace
}  // namespace graft
