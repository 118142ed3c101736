#include "batch/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/test_errors.h"

namespace graft::batch {
namespace {

using test::expect_error;

using testing::ElementsAre;
using testing::HasSubstr;

std::string written(const std::string& text, const std::string& name = "rows") {
  const std::string path = testing::TempDir() + "batch_reader_" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// "index:line:fields" of each row, or "index:line!error".
std::vector<std::string> all(Reader& reader) {
  std::vector<std::string> out;
  for (Row row; reader.next(row);)
    out.push_back(str(row.index, ':', row.line, row.error.empty() ? ':' : '!',
                      row.error.empty() ? serve::dump(row.fields) : row.error));
  return out;
}
std::vector<std::string> json_lines(const std::string& text, std::size_t most = kMostRowBytes) {
  return all(*read_json_lines(written(text), most));
}
std::vector<std::string> csv(const std::string& text, std::size_t most = kMostRowBytes) {
  return all(*read_csv(written(text), most));
}

TEST(JsonLines, Rows) {
  EXPECT_THAT(json_lines(""), ElementsAre());
  EXPECT_THAT(json_lines("\n  \n\r\n"), ElementsAre());
  EXPECT_THAT(json_lines("{\"a\":1}\n{\"a\":2}"), ElementsAre("0:1:{\"a\":1}", "1:2:{\"a\":2}"));
  EXPECT_THAT(json_lines("\xEF\xBB\xBF{\"a\":1}\r\n\n \t{\"b\":[]} \n"),
              ElementsAre("0:1:{\"a\":1}", "1:3:{\"b\":[]}"));
}

TEST(JsonLines, WhatIsNoRowHasAnErrorAndTheNextOneIsRead) {
  const auto rows = json_lines("{\"a\":1\n[1]\n7\n{\"a\":1,\"a\":2}\n{\"a\":\"\xFF\"}\n{\"b\":\"\xC3\xA4\"}\n");
  EXPECT_THAT(rows, ElementsAre(HasSubstr("0:1!the row is no valid JSON: parse error"),
                                "1:2!a row must be a JSON object, found an array",
                                "2:3!a row must be a JSON object, found an integer",
                                HasSubstr("3:4!the row has the key 'a' twice"),
                                HasSubstr("4:5!the row is no valid JSON"), "5:6:{\"b\":\"\xC3\xA4\"}"));
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  EXPECT_THAT(json_lines("{\"a\":" + deep + "}"), ElementsAre(HasSubstr("!the row ")));
}

TEST(JsonLines, ALineThatIsTooLong) {
  const std::string line = "{\"a\":\"" + std::string(100, 'x') + "\"}";
  EXPECT_THAT(json_lines(line + "\n{}\n", line.size() - 1),
              ElementsAre(str("0:1!the line has more than ", line.size() - 1, " bytes"), "1:2:{}"));
  EXPECT_EQ(json_lines(line + "\n", line.size()).at(0), "0:1:" + line);
}

TEST(JsonLines, LinesAcrossTheBuffer) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "{\"n\":" + std::to_string(i) + ",\"s\":\"" + std::string(1000, 'y') + "\"}\n";
  const auto reader = read_json_lines(written(text));
  int count = 0;
  for (Row row; reader->next(row); ++count) ASSERT_EQ(row.fields.at("n"), count);
  EXPECT_EQ(count, 3000);
  const FileIdentity identity = reader->identity();
  EXPECT_EQ(identity.bytes, text.size());
  EXPECT_EQ(identity.sha256, hex_of(sha256(std::as_bytes(std::span(text)))));
}

TEST(JsonLines, SkippedRowsCount) {
  const auto reader = read_json_lines(written("{}\n\nnothing\n{\"a\":1}\n"));
  EXPECT_TRUE(reader->skip() && reader->skip());
  EXPECT_THAT(all(*reader), ElementsAre("2:4:{\"a\":1}"));
  EXPECT_FALSE(reader->skip());
}

TEST(Csv, Rows) {
  EXPECT_THAT(csv("a,b\n1,2\n"), ElementsAre(R"(0:2:{"a":"1","b":"2"})"));
  EXPECT_THAT(csv("\xEF\xBB\xBF\"a\",b\r\n1,\r\n\r\n,2"),
              ElementsAre(R"(0:2:{"a":"1","b":""})", R"(1:4:{"a":"","b":"2"})"));
  EXPECT_THAT(csv("a\n\"\"\nx"), ElementsAre(R"(0:2:{"a":""})", R"(1:3:{"a":"x"})"));
  EXPECT_THAT(csv("a\n"), ElementsAre());
}

TEST(Csv, Quotes) {
  EXPECT_THAT(csv("a,b\n\"x, y\",\"say \"\"hi\"\"\"\n"), ElementsAre(R"(0:2:{"a":"x, y","b":"say \"hi\""})"));
  EXPECT_THAT(csv("a,b\n\"1\n2\r\n3\",4\n5,6\n"),
              ElementsAre(R"(0:2:{"a":"1\n2\r\n3","b":"4"})", R"(1:5:{"a":"5","b":"6"})"));
  EXPECT_THAT(csv("a\n5\" pipe\n"), ElementsAre(R"(0:2:{"a":"5\" pipe"})"));
}

TEST(Csv, WhatIsNoRow) {
  EXPECT_THAT(csv("a,b\n1\n1,2,3\n\"x\"y,2\n\xFF,1\n3,4\n"),
              ElementsAre("0:2!the row has 1 fields, the first line names 2 columns",
                          "1:3!the row has 3 fields, the first line names 2 columns",
                          "2:4!a quoted field goes on after its closing quote", "3:5!the row is not UTF-8",
                          R"(4:6:{"a":"3","b":"4"})"));
  EXPECT_THAT(csv("a\n\"open\nto the end\n"), ElementsAre("0:2!a quote is not closed before the end of the file"));
  EXPECT_THAT(csv("a\n" + std::string(50, 'x') + "\nshort\n", 20),
              ElementsAre("0:2!the row has more than 20 bytes", R"(1:3:{"a":"short"})"));
  EXPECT_THAT(csv("a\n\"" + std::string(15, 'x') + "\n" + std::string(15, 'y') + "\nshort\n", 20),
              ElementsAre("0:2!the row has more than 20 bytes", R"(1:4:{"a":"short"})"));
}

TEST(Csv, TheFirstLineNamesColumns) {
  expect_error<InvalidArgument>([&] { csv(""); }, "is empty: its first line must name the columns");
  expect_error<InvalidArgument>([&] { csv("a,,b\n"); }, "a column has no name");
  expect_error<InvalidArgument>([&] { csv("a,b,a\n"); }, "has two columns 'a'");
  expect_error<InvalidArgument>([&] { csv("\"a\n"); }, "must name the columns: a quote is not closed");
}

TEST(Csv, WhatIsWrittenIsRead) {
  const std::vector<std::string> fields = {"",         "plain", "a,b",     "say \"hi\"", "two\nlines\r\n",
                                           " spaces ", "\r",    "\xC3\xA4"};
  std::string text = "c0,c1,c2,c3,c4,c5,c6,c7\n", expected;
  for (const std::string& field : fields) {
    if (!expected.empty()) text += ',';
    append_csv(text, field);
    expected += '.';
  }
  const auto reader = read_csv(written(text + "\n"));
  Row row;
  ASSERT_TRUE(reader->next(row));
  ASSERT_EQ(row.error, "");
  for (std::size_t i = 0; i < fields.size(); ++i) EXPECT_EQ(row.fields.at(str('c', i)), Json(fields[i]));
}

TEST(Folder, EachFileIsARow) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "folder of rows";
  fs::remove_all(folder);
  fs::create_directories(folder / "b" / ".cache");
  for (const char* name : {"b/x \"1\".wav", "c.wav", "a.wav", ".hidden", "b/.cache/y.wav"})
    std::ofstream(folder / name) << name;
  const auto identity = [&] {
    const auto reader = read_folder(folder.string());
    while (reader->skip()) continue;
    return reader->identity();
  };
  const auto reader = read_folder(folder.string());
  std::vector<std::string> paths;
  Row row;
  while (reader->next(row)) {
    EXPECT_EQ(row.index, paths.size());
    EXPECT_EQ(serve::Json::parse(row.text), row.fields);
    paths.push_back(row.fields.at("path").get<std::string>());
  }
  EXPECT_EQ(paths, (std::vector<std::string>{"a.wav", "b/x \"1\".wav", "c.wav"}));
  const FileIdentity first = reader->identity();
  EXPECT_EQ(first.bytes, 5 + 11 + 5);
  EXPECT_EQ(identity().sha256, first.sha256);
  EXPECT_NO_THROW(reader->check_unchanged());
  std::ofstream(folder / "a.wav") << "A.wav";
  EXPECT_NE(identity().sha256, first.sha256) << "other content";
  std::ofstream(folder / "a.wav") << "a.wav";
  fs::rename(folder / "a.wav", folder / "aa.wav");
  EXPECT_NE(identity().sha256, first.sha256) << "another name";
  expect_error<SystemError>([&] { reader->check_unchanged(); }, "files came to or went from");
  expect_error<NotFound>([&] { read_folder((folder / "nowhere").string()); }, "there is no folder");
}

TEST(InputFile, WhatCannotBeRead) {
  expect_error<NotFound>([&] { InputFile(testing::TempDir() + "not there"); }, "not there'");
  expect_error<SystemError>([&] { InputFile(testing::TempDir()); }, "it is no regular file");
}

TEST(InputFile, AChangeIsSeen) {
  const std::string path = written("{}\n", "changed");
  const auto reader = read_json_lines(path);
  Row row;
  EXPECT_TRUE(reader->next(row));
  EXPECT_NO_THROW(reader->check_unchanged());
  std::ofstream(path, std::ios::app) << "{}\n";
  expect_error<SystemError>([&] { reader->check_unchanged(); }, "was changed while it was read");
}

}  // namespace
}  // namespace graft::batch
