#include "batch/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/sha256.h"
#include "base/test_errors.h"

namespace graft::batch {
namespace {

using test::expect_error;

namespace fs = std::filesystem;

class OutputTest : public testing::Test {
 protected:
  OutputTest() : folder_(testing::TempDir() + "batch_output") { fs::remove_all(folder_); }
  ~OutputTest() override { fs::remove_all(folder_); }

  static Manifest described() {
    Manifest run;
    run.graft = "1.2.3";
    run.created = 7;
    run.input = {{"bytes", 5}, {"sha256", "in"}};
    run.model = {{"package", {{"sha256", "model"}}}};
    run.options = {{"task", "embed"}, {"shard_rows", 2}};
    return run;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
  void write_two() const {
    Output output(folder_, described(), false);
    output.write(0, 2, "one\n", ".jsonl", 1, "wrong\n");
    output.write(1, 2, "two\n", ".jsonl", 0, "");
    output.complete();
  }

  std::string folder_;
};

using testing::ElementsAre;

TEST_F(OutputTest, FilesAndTheManifest) {
  write_two();
  EXPECT_THAT(files(), ElementsAre("errors-00000.jsonl", "manifest.json", "part-00000.jsonl", "part-00001.jsonl"));
  EXPECT_EQ(read("part-00000.jsonl"), "one\n");
  EXPECT_EQ(read("errors-00000.jsonl"), "wrong\n");
  const Manifest manifest = Manifest::parse(read("manifest.json"), "manifest.json");
  EXPECT_TRUE(manifest.complete);
  ASSERT_EQ(manifest.shards.size(), 2u);
  EXPECT_EQ(manifest.shards.at(0).error_count, 1u);
  EXPECT_EQ(manifest.shards.at(1).rows.sha256, hex_of(sha256(std::as_bytes(std::span(std::string_view("two\n"))))));
  EXPECT_EQ(manifest.text(), read("manifest.json"));
}

TEST_F(OutputTest, ARunGoesOnWithWhatIsThere) {
  {
    Output output(folder_, described(), true);  // nothing is there yet
    EXPECT_FALSE(output.has(0));
    output.write(0, 2, "one\n", ".jsonl", 0, "");
  }
  Manifest later = described();
  later.created = 1000;
  Output output(folder_, later, true);
  EXPECT_TRUE(output.has(0) && !output.has(1));
  EXPECT_EQ(output.manifest().created, 7);
}

TEST_F(OutputTest, FilesThatTheManifestDoesNotNameAreMadeAgain) {
  write_two();
  write("part-00002.jsonl", "of a run that was killed");
  write("errors-00002.jsonl", "the same");
  write("notes.txt", "of somebody else");
  fs::remove(folder_ + "/errors-00000.jsonl");
  Output output(folder_, described(), true);
  EXPECT_TRUE(!output.has(0) && output.has(1) && !output.has(2) && !output.manifest().complete);
  EXPECT_THAT(files(), ElementsAre("manifest.json", "notes.txt", "part-00001.jsonl"));
}

TEST_F(OutputTest, AFileThatWasChanged) {
  write_two();
  write("part-00001.jsonl", "other\n");
  expect_error<InvalidArgument>([&] { Output(folder_, described(), true); },
                                "part-00001.jsonl' is not as 'manifest.json' says");
}

TEST_F(OutputTest, AnotherRun) {
  write_two();
  expect_error<InvalidArgument>([&] { Output(folder_, described(), false); }, "is not empty: --resume continues");
  const auto refused = [&](const char* message, const auto& change) {
    Manifest run = described();
    change(run);
    expect_error<InvalidArgument>([&] { Output(folder_, run, true); }, message);
  };
  refused("the input is another one: sha256 (\"in\", now \"else\")",
          [](Manifest& run) { run.input["sha256"] = "else"; });
  refused("the model is another one: tokenizer (nothing, now 1)", [](Manifest& run) { run.model["tokenizer"] = 1; });
  refused("the options are others: task (\"embed\", now nothing), shard_rows (2, now 3)", [](Manifest& run) {
    run.options.erase("task");
    run.options["shard_rows"] = 3;
  });
  refused("it was begun by another version: 1.2.3, now 2", [](Manifest& run) { run.graft = "2"; });
  EXPECT_EQ(Output(folder_, described(), true).manifest().shards.size(), 2u);
}

TEST_F(OutputTest, AFolderOfSomethingElse) {
  fs::create_directories(folder_);
  write("notes.txt", "mine");
  expect_error<InvalidArgument>([&] { Output(folder_, described(), false); }, "is not empty");
  expect_error<InvalidArgument>([&] { Output(folder_, described(), true); }, "no run began in it");
  expect_error<SystemError>([&] { Output(folder_ + "/notes.txt", described(), true); }, "notes.txt'");
  EXPECT_THAT(files(), ElementsAre("notes.txt"));
}

TEST_F(OutputTest, OneProcessAtATime) {
  const Output first(folder_, described(), false);
  expect_error<Busy>([&] { Output(folder_, described(), true); }, "another process writes to the folder");
}

TEST(Manifest, WhatIsNone) {
  const Json good = read_json<Json>(Manifest{.graft = "1"}.text());
  EXPECT_NO_THROW(Manifest::parse(serve::dump(good), "m"));
  const auto refused = [&](const char* message, const auto& change) {
    Json json = good;
    change(json);
    expect_error<InvalidProgram>([&] { Manifest::parse(serve::dump(json), "m"); }, message);
  };
  expect_error<InvalidProgram>([&] { Manifest::parse("{\"gra", "m"); },
                               "'m' is no manifest of graft batch: it is no JSON object");
  refused("its format is 2, this graft reads 1", [](Json& json) { json["graft_batch"] = 2; });
  refused("'graft_batch' is required", [](Json& json) { json.erase("graft_batch"); });
  refused("'created' is required", [](Json& json) { json.erase("created"); });
  refused("unknown parameter 'x'", [](Json& json) { json["x"] = 1; });
  const Json file = {{"name", "part-00000.jsonl"}, {"sha256", "00"}};
  refused("'shards[0].index' is required", [&](Json& json) { json["shards"] = {{{"rows", 1}, {"file", file}}}; });
  refused("'shards[1]' has the index 0, as one before", [&](Json& json) {
    const Json shard = {{"index", 0}, {"rows", 1}, {"file", file}};
    json["shards"] = Json::array({shard, shard});
  });
  refused("'shards[0].error_file' is required", [&](Json& json) {
    json["shards"] = Json::array({{{"index", 0}, {"rows", 1}, {"errors", 1}, {"file", file}}});
  });
  for (const char* name : {"", "../x", "/etc/passwd", ".x"})
    refused("which is no name of a file", [&](Json& json) {
      json["shards"] = Json::array({{{"index", 0}, {"rows", 1}, {"file", {{"name", name}, {"sha256", "00"}}}}});
    });
}

}  // namespace
}  // namespace graft::batch
