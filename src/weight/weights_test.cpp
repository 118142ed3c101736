#include "weight/weights.h"

#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/log.h"
#include "base/test_errors.h"
#include "ggml.h"
#include "graft/error.h"
#include "weight/test_container.h"
#include "weight/test_weights.h"

namespace graft {
namespace {

using test::Blob;
using test::bytes_of;
using test::make_gguf;
using test::make_safetensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string_view text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Blob blob(std::string_view text) {
  Blob out(text.size());
  if (!text.empty()) std::memcpy(out.data(), text.data(), text.size());  // empty text has a null pointer
  return out;
}

class Weights : public ::testing::Test {
 protected:
  Weights() { install_ggml_log(); }  // silences ggml's messages about damaged files

  std::vector<WeightFile> open(const std::string& name, const Blob& bytes) {
    return open_weights(folder_.write(name, bytes));
  }

  // The message of `ErrorType`, or "" when the file opens.
  template <typename ErrorType = InvalidProgram>
  std::string error_of(const std::string& name, const Blob& bytes) {
    try {
      open(name, bytes);
    } catch (const ErrorType& error) {
      return error.what();
    }
    return "";
  }

  // Safetensors with this header and 8 bytes of data.
  std::string error_of_header(const std::string& header) {
    Blob bytes(8);
    test::put(bytes, 0, header.size(), 8);
    const Blob rest = blob(header);
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    bytes.resize(bytes.size() + 8);
    return error_of("h.safetensors", bytes);
  }

  // A store with a package without data and this file.
  WeightStore store(const std::string& path) {
    WeightStore out(WeightFile{MappedFile::of_memory({}, "p.pte", nullptr), {}});
    if (!path.empty()) out.add_files(path);
    return out;
  }

  static ir::Weight weight(const std::string& key, DType dtype, const Shape& shape) {
    ir::Weight out;
    out.key = out.fqn = key;
    out.dtype = dtype;
    out.shape = shape;
    out.byte_size = static_cast<std::uint64_t>(shape.numel()) * byte_size(dtype);
    return out;
  }

  template <typename ErrorType>
  static std::string find_error(WeightStore store, const ir::Weight& weight) {
    try {
      store.find(weight);
    } catch (const ErrorType& error) {
      return error.what();
    }
    return "";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Weights, FormatsAreToldApartByTheirBytes) {
  const Blob content = bytes_of(12, 3);
  const std::pair<const char*, Blob> files[] = {
      {"a.ptd", test::make_ptd({{"w", content}})},
      {"a.bin", make_safetensors({{"w", "I16", {2, 3}, content}})},
      {"a.weights", make_gguf({{"w", GGML_TYPE_I16, {3, 2}, content}}, folder_.path())},
  };
  for (const auto& [name, bytes] : files) {
    const std::vector<WeightFile> found = open(name, bytes);
    ASSERT_EQ(found.size(), 1U);
    const StoredTensor& tensor = found[0].tensors.at("w");
    EXPECT_EQ(text(tensor.bytes), text(content)) << name;
    const std::span<const std::byte> all = found[0].file->bytes();
    EXPECT_GE(tensor.bytes.data(), all.data());
    EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), all.data() + all.size());
  }
  EXPECT_THAT(error_of("a.zip", blob("PK\3\4 and more bytes than eight")), HasSubstr("not a file of weights"));
  EXPECT_THAT(error_of("empty", {}), HasSubstr("empty': not a file of weights"));
  EXPECT_THROW(open_weights((folder_.path() / "none.gguf").string()), NotFound);
}

TEST_F(Weights, DtypeAndSizesMustBeThoseOfTheProgram) {
  const Blob content = bytes_of(24);
  const std::string files[] = {
      folder_.write("a.safetensors", make_safetensors({{"w", "F32", {2, 3}, content}})),
      folder_.write("a.gguf", make_gguf({{"w", GGML_TYPE_F32, {3, 2}, content}}, folder_.path()))};
  for (const std::string& path : files) {
    EXPECT_EQ(text(store(path).find(weight("w", DType::f32, {2, 3})).bytes), text(content));
    EXPECT_THAT(find_error<InvalidProgram>(store(path), weight("w", DType::f16, {2, 3})),
                AllOf(HasSubstr("weight 'w' must have dtype f16"), HasSubstr(path)));
    EXPECT_THAT(find_error<InvalidProgram>(store(path), weight("w", DType::i32, {2, 3})), HasSubstr("dtype i32"));
    EXPECT_THAT(find_error<InvalidProgram>(store(path), weight("w", DType::f32, {3, 2})),
                AllOf(HasSubstr("must have sizes [3, 2]"), HasSubstr("2, 3]")));
  }
  // GGUF has no rank: leading sizes of 1 are ignored.
  EXPECT_EQ(store(files[1]).find(weight("w", DType::f32, {1, 2, 3})).bytes.size(), 24U);
  // A weight is found by its module name too.
  ir::Weight renamed = weight("other", DType::f32, {2, 3});
  renamed.fqn = "w";
  EXPECT_EQ(text(store(files[0]).find(renamed).bytes), text(content));
}

TEST_F(Weights, ValuesOfF32MayBeStoredAsHalvesOrInBlocks) {
  const std::string gguf = folder_.write(
      "q.gguf", make_gguf({{"q", GGML_TYPE_Q8_0, {64, 2}, bytes_of(136)}, {"b", GGML_TYPE_BF16, {4}, bytes_of(8)}},
                          folder_.path()));
  const std::string path = folder_.write("h.safetensors", make_safetensors({{"w", "F16", {2, 3}, bytes_of(12)}}));
  EXPECT_EQ(store(gguf).find(weight("b", DType::f32, {4})).stored, Stored::as(DType::bf16));
  EXPECT_EQ(store(path).find(weight("w", DType::f32, {2, 3})).stored, Stored::as(DType::f16));
  const FoundWeight blocks = store(gguf).find(weight("q", DType::f32, {2, 64}));
  EXPECT_EQ(blocks.stored, Stored::as_blocks(*find_block_type("Q8_0")));
  EXPECT_EQ(text(blocks.bytes), text(bytes_of(136)));
  // No conversion to other dtypes, and sizes must match.
  EXPECT_THAT(find_error<InvalidProgram>(store(gguf), weight("q", DType::f16, {2, 64})),
              AllOf(HasSubstr("weight 'q' must have dtype f16"), HasSubstr("has q8_0")));
  EXPECT_THAT(find_error<InvalidProgram>(store(gguf), weight("b", DType::f16, {4})), HasSubstr("has bf16"));
  EXPECT_THAT(find_error<InvalidProgram>(store(gguf), weight("q", DType::f32, {64, 2})), HasSubstr("must have"));
  EXPECT_THAT(find_error<InvalidProgram>(store(gguf), weight("q", DType::f32, {1, 64})), HasSubstr("must have sizes"));
}

TEST_F(Weights, ForeignTypesAreRefusedOnlyWhenAskedFor) {
  const std::string gguf = folder_.write(
      "q.gguf", make_gguf({{"q", GGML_TYPE_Q8_K, {256, 1}, bytes_of(292)}, {"w", GGML_TYPE_F32, {2}, bytes_of(8)}},
                          folder_.path()));
  EXPECT_EQ(store(gguf).find(weight("w", DType::f32, {2})).bytes.size(), 8U);
  EXPECT_THAT(find_error<Unsupported>(store(gguf), weight("q", DType::f32, {1, 256})),
              AllOf(HasSubstr("weight 'q' is stored as q8_K"), HasSubstr("q.gguf")));
  const std::string f8 = folder_.write("f8.safetensors", make_safetensors({{"q", "F8_E4M3", {8}, bytes_of(8)}}));
  EXPECT_THAT(find_error<Unsupported>(store(f8), weight("q", DType::f32, {2})), HasSubstr("stored as F8_E4M3"));
}

TEST_F(Weights, AMissingKeyNamesItselfTheFilesAndNamesLikeIt) {
  const std::string path =
      folder_.write("m.safetensors", make_safetensors({{"model.encoder.0.weight", "U8", {1}, bytes_of(1)},
                                                       {"encoder.0.wieght", "U8", {1}, bytes_of(1)},
                                                       {"lm_head.bias", "U8", {1}, bytes_of(1)}}));
  const std::string message = find_error<NotFound>(store(path), weight("encoder.0.weight", DType::u8, {1}));
  EXPECT_THAT(message, AllOf(HasSubstr("no weight 'encoder.0.weight' in 'p.pte', '" + path + "'"),
                             HasSubstr("names like it there: 'model.encoder.0.weight', 'encoder.0.wieght'"),
                             ::testing::Not(HasSubstr("lm_head"))));
  EXPECT_THAT(find_error<NotFound>(store(""), weight("x", DType::u8, {1})),
              HasSubstr("no weight 'x' in 'p.pte'; give"));
}

TEST_F(Weights, AllThatDoNotFitAreListed) {
  const std::string path = folder_.write(
      "m.safetensors", make_safetensors({{"a", "F32", {2}, bytes_of(8)}, {"b", "F32", {2}, bytes_of(8)}}));
  const ir::Weight a = weight("a", DType::f32, {2}), wide = weight("a", DType::f32, {3}),
                   b = weight("b", DType::i32, {2}), c = weight("c", DType::f32, {2}), d = weight("d", DType::u8, {1});
  const auto check = [&](const std::vector<const ir::Weight*>& weights) {
    WeightStore from = store(path);
    from.check(weights);
  };
  check({&a, &a});
  test::expect_error<NotFound>([&] { check({&a, &c}); }, "no weight 'c' in 'p.pte', '" + path + "'");
  test::expect_error<NotFound>([&] { check({&c, &a, &d, &c}); }, "no weight 'c', weight 'd' in 'p.pte'");
  test::expect_error<InvalidProgram>([&] { check({&a, &b}); }, "weight 'b' must have dtype i32");
  test::expect_error<InvalidProgram>(
      [&] {
        check({&wide, &b, &c, &d});
      },
      "4 of 4 weights do not fit the program\n  weight 'a' must have sizes [3]");
}

TEST_F(Weights, ANameInTwoFiles) {
  WeightStore both = store(folder_.write("a.ptd", test::make_ptd({{"w", bytes_of(8)}, {"v", bytes_of(4)}})));
  both.add_files(folder_.write("b.safetensors", make_safetensors({{"w", "F32", {2}, bytes_of(8)}})));
  EXPECT_EQ(both.find(weight("v", DType::f32, {1})).bytes.size(), 4U);
  EXPECT_THAT(find_error<InvalidProgram>(std::move(both), weight("w", DType::f32, {2})),
              AllOf(HasSubstr("a.ptd' and again in '"), HasSubstr("b.safetensors")));
}

TEST_F(Weights, MemoryOfTheCaller) {
  alignas(8) float data[3] = {1, 2, 3};
  const auto given = [&](const TensorView& view, const std::string& name = "w") {
    WeightStore out = store(folder_.write("a.ptd", test::make_ptd({{"w", bytes_of(8)}})));
    out.add_memory({{name, view}});
    return out;
  };
  WeightStore good = given({data, DType::f32, {2}});
  const FoundWeight found = good.find(weight("w", DType::f32, {2}));
  EXPECT_EQ(found.bytes.data(), reinterpret_cast<const std::byte*>(data));  // the caller's memory wins over the file
  good.check_memory_used();
  EXPECT_THAT(find_error<InvalidArgument>(given({data, DType::f32, {3}}), weight("w", DType::f32, {2})),
              HasSubstr("weight 'w' must be f32[2], the memory given is f32[3]"));
  EXPECT_THAT(find_error<InvalidArgument>(given({data, DType::i32, {2}}), weight("w", DType::f32, {2})),
              HasSubstr("the memory given is i32[2]"));
  EXPECT_THAT(find_error<InvalidArgument>(given({nullptr, DType::f32, {2}}), weight("w", DType::f32, {2})),
              HasSubstr("null"));
  EXPECT_THAT(find_error<InvalidArgument>(given({reinterpret_cast<char*>(data) + 2, DType::f32, {2}}),
                                          weight("w", DType::f32, {2})),
              HasSubstr("must be aligned to 4 bytes"));
  WeightStore unused = given({data, DType::f32, {2}}, "v");
  unused.find(weight("w", DType::f32, {2}));
  EXPECT_THROW(unused.check_memory_used(), InvalidArgument);
}

TEST_F(Weights, ShardsOfAnIndex) {
  folder_.write("model-1.safetensors", make_safetensors({{"a", "F32", {1}, bytes_of(4, 1)}}));
  folder_.write("model-2.safetensors",
                make_safetensors({{"b", "F32", {1}, bytes_of(4, 5)}, {"a", "F32", {1}, bytes_of(4, 9)}}));
  const auto index = [](const std::string& map) { return blob(R"({"metadata": {}, "weight_map": )" + map + "}"); };
  const std::string path = folder_.write("model.safetensors.index.json",
                                         index(R"({"a": "model-1.safetensors", "b": "model-2.safetensors"})"));
  EXPECT_EQ(text(store(path).find(weight("a", DType::f32, {1})).bytes), text(bytes_of(4, 1)));
  EXPECT_EQ(text(store(path).find(weight("b", DType::f32, {1})).bytes), text(bytes_of(4, 5)));
  const std::string name = "x.index.json";
  EXPECT_THAT(error_of(name, index(R"({"c": "model-1.safetensors"})")), HasSubstr("weight 'c' is not in its shard"));
  EXPECT_THAT(error_of(name, index(R"({"c": "../model-1.safetensors"})")),
              HasSubstr("must be a file beside the index"));
  EXPECT_THAT(error_of(name, index(R"({"c": 3})")), HasSubstr("must be a string"));
  EXPECT_THAT(error_of<NotFound>(name, index(R"({"c": "model-3.safetensors"})")), HasSubstr("model-3.safetensors"));
  EXPECT_THAT(error_of(name, blob("[1, 2]")), HasSubstr("weight_map"));
  EXPECT_THAT(error_of(name, blob("{")), HasSubstr("weight_map"));
}

TEST_F(Weights, SafetensorsHeaders) {
  EXPECT_EQ(error_of_header(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {}})"),
            "");
  EXPECT_EQ(error_of_header(R"({"e": {"dtype": "F32", "shape": [0, 3], "data_offsets": [8, 8]}})"), "");
  const auto bad = [&](const std::string& entry) { return error_of_header("{\"a\": " + entry + "}"); };
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]})"), HasSubstr("truncated"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]})"), HasSubstr("do not lie in"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]})"), HasSubstr("takes 4 bytes"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]})"), HasSubstr("takes 12 bytes"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]})"), HasSubstr("expected a size"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]})"), HasSubstr("expected a size"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [9223372036854775807, 9], "data_offsets": [0, 8]})"),
              HasSubstr("64 bits"));
  EXPECT_THAT(bad(R"({"dtype": 4, "shape": [2], "data_offsets": [0, 8]})"), HasSubstr("its 'dtype'"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "data_offsets": [0, 8]})"), HasSubstr("its 'shape'"));
  EXPECT_THAT(bad(R"({"dtype": "F32", "shape": [2], "data_offsets": [0]})"), HasSubstr("two data_offsets"));
  EXPECT_THAT(bad("7"), HasSubstr("is missing or of another kind"));
  const std::string twice = R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  EXPECT_THAT(error_of_header("{" + twice + ", " + twice + "}"),
              HasSubstr("its header has the key 'a' twice in one object"));
  EXPECT_THAT(error_of_header("{not json"), HasSubstr("is not JSON"));
  EXPECT_THAT(error_of_header(std::string(200000, '[')), HasSubstr("not a file of weights"));
  EXPECT_THAT(error_of_header("{\"a\":" + std::string(200000, '[')), HasSubstr("is not JSON"));
  Blob long_header(64);
  test::put(long_header, 0, ~std::uint64_t{0}, 8);
  test::put(long_header, 8, '{', 1);
  EXPECT_THAT(error_of("l.safetensors", long_header), HasSubstr("reaches beyond"));
}

// Truncates to every length, changes every byte, and adds seeded damage: each file opens or is an InvalidProgram. Run
// under the sanitizers too.
TEST_F(Weights, APackageNamesFilesBesideIt) {
  const auto files_of = [&](const std::string& json) {
    const std::string path = folder_.write("package", blob(json));
    WeightFile package{MappedFile::open(path), {}};
    package.tensors["graft.weights.json"].bytes = package.file->bytes();
    return weight_files_of(package);
  };
  const std::string here = folder_.path().string();
  EXPECT_THAT(files_of(R"(["a.safetensors", "../b.gguf"])"), ElementsAre(here + "/a.safetensors", here + "/../b.gguf"));
  EXPECT_TRUE(files_of("[]").empty());
  EXPECT_TRUE(weight_files_of({MappedFile::open(folder_.write("none", bytes_of(8))), {}}).empty());
  for (const char* wrong : {"", "{}", "[1]", R"([""])", "[\"a\"", "\xff"})
    EXPECT_THROW(files_of(wrong), InvalidProgram) << wrong;
}

TEST_F(Weights, DamagedFiles) {
  const Blob good[] = {
      make_safetensors({{"w", "F32", {2, 3}, bytes_of(24)}, {"v", "BOOL", {5}, bytes_of(5)}}),
      make_gguf({{"w", GGML_TYPE_F32, {3, 2}, bytes_of(24)}, {"q", GGML_TYPE_Q8_0, {32}, bytes_of(34)}},
                folder_.path())};
  unsigned sum = 0;
  const auto opens = [&](const Blob& bytes) {
    try {
      for (const WeightFile& file : open("damaged", bytes))
        for (const auto& [name, tensor] : file.tensors)
          for (const std::byte b : tensor.bytes) sum += std::to_integer<unsigned>(b);
      return true;
    } catch (const InvalidProgram&) {
      return false;
    }
  };
  std::mt19937 random(11);
  for (const Blob& bytes : good) {
    ASSERT_TRUE(opens(bytes));
    for (std::size_t length = 0; length + 64 < bytes.size(); ++length)
      EXPECT_FALSE(opens({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)})) << length;
    for (int round = 0; round < 4000; ++round) {
      Blob damaged = bytes;
      for (std::size_t i = 1 + random() % 4; i > 0; --i) {
        const std::size_t at = random() % damaged.size();
        damaged[at] = random() % 2 == 0 ? static_cast<std::byte>(random())
                                        : damaged[at] ^ static_cast<std::byte>(1U << (random() % 8));
      }
      opens(damaged);
    }
  }
}

TEST(CloseNames, AtMostThreeBestFirst) {
  EXPECT_EQ(
      close_names("layer.1.weight", {"layer.2.weight", "x", "layer.11.weight", "layer.1.bias", "layer.1.weights"}),
      "'layer.1.weights', 'layer.11.weight', 'layer.2.weight'");
  EXPECT_EQ(close_names("a.b", {"c", "d.e"}), "");
}

}  // namespace
}  // namespace graft
