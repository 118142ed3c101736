#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/utf8.h"
#include "graft_generated.h"
#include "ir/program.h"

namespace graft::ir {
namespace {

// Root, method, node and argument take four levels; lists of arguments the rest.
constexpr flatbuffers::uoffset_t kMaxTableDepth = 32;
// Decoded bytes allowed per byte of the blob. Shared tables and strings are copied when decoded: graft's writer shares
// equal ones and stays below a factor of 30; a hostile file could have any.
constexpr std::size_t kMaxExpansion = 64;
constexpr std::size_t kExpansionSlack = 1024 * 1024;
// The same limit for a single list, which is one allocation.
constexpr std::size_t kMaxListGrowth = 10;
// The largest buffer that FlatBuffers' signed 32-bit offsets can address.
constexpr std::size_t kMaxBlobBytes = FLATBUFFERS_MAX_BUFFER_SIZE - 1;
// Format features that this reader knows.
constexpr std::array<std::string_view, 1> kKnownFeatures{"subgraphs"};

template <typename Enum>
std::string enum_message(const char* what, Enum value) {
  return str(what, " ", static_cast<unsigned>(value), " is not known to this version of graft");
}

DType to_dtype(fb::DType t) {
  GRAFT_CHECK(InvalidProgram, t <= fb::DType::MAX, enum_message("dtype", t));
  return static_cast<DType>(t);
}

ValueKind to_ir(fb::ValueKind k) {
  GRAFT_CHECK(InvalidProgram, k <= fb::ValueKind::MAX, enum_message("value kind", k));
  return static_cast<ValueKind>(k);
}

Arg::Kind to_ir(fb::ArgKind k) {
  GRAFT_CHECK(InvalidProgram, k <= fb::ArgKind::MAX, enum_message("argument kind", k));
  return static_cast<Arg::Kind>(k);
}

Storage to_ir(fb::Storage s) {
  GRAFT_CHECK(InvalidProgram, s <= fb::Storage::MAX, enum_message("weight storage", s));
  return static_cast<Storage>(s);
}

InputKind to_ir(fb::InputKind k) {
  GRAFT_CHECK(InvalidProgram, k <= fb::InputKind::MAX, enum_message("input kind", k));
  return static_cast<InputKind>(k);
}

OutputKind to_ir(fb::OutputKind k) {
  GRAFT_CHECK(InvalidProgram, k <= fb::OutputKind::MAX, enum_message("output kind", k));
  return static_cast<OutputKind>(k);
}

// The enums of both sides are cast into one another above.
static_assert(static_cast<int>(fb::DType::bool_) == static_cast<int>(DType::b8));
static_assert(static_cast<int>(fb::DType::MAX) + 1 == static_cast<int>(kDTypeCount));
static_assert(static_cast<int>(fb::ValueKind::bool_) == static_cast<int>(ValueKind::boolean));
static_assert(static_cast<int>(fb::ArgKind::graph) == static_cast<int>(Arg::Kind::graph));
static_assert(static_cast<int>(fb::ArgKind::value) == static_cast<int>(Arg::Kind::value));
static_assert(static_cast<int>(fb::Storage::ggml_block) == static_cast<int>(Storage::ggml_block));
static_assert(static_cast<int>(fb::Storage::panels16) == static_cast<int>(Storage::panels));
static_assert(static_cast<int>(fb::InputKind::state) == static_cast<int>(InputKind::state));
static_assert(static_cast<int>(fb::OutputKind::input_mutation) == static_cast<int>(OutputKind::input_mutation));

class Decoder {
 public:
  explicit Decoder(std::size_t blob_bytes)
      : budget_(blob_bytes * kMaxExpansion + kExpansionSlack),
        largest_(std::max(blob_bytes * kMaxListGrowth, kExpansionSlack)) {}

  Program program(const fb::Program& in) {
    Program out;
    out.major = in.major();
    out.minor = in.minor();
    check_header(in);
    decode_all(in.producers(), out.producers, [&](const fb::Producer& p) {
      return Producer{text(p.name()), text(p.version())};
    });
    decode_all(in.ops(), out.ops, [&](const fb::Op& o) { return op(o); });
    decode_all(in.weights(), out.weights, [&](const fb::Weight& w) { return weight(w); });
    decode_all(in.states(), out.states, [&](const fb::State& s) { return state(s); });
    decode_all(in.methods(), out.methods, [&](const fb::Method& m) { return method(m); });
    decode_all(in.subgraphs(), out.subgraphs, [&](const fb::Method& m) { return method(m); });
    return out;
  }

 private:
  static void check_header(const fb::Program& in) {
    GRAFT_CHECK(InvalidProgram, in.major() == kFormatMajor, "format version ", in.major(), ".", in.minor(), ": graft ",
                GRAFT_VERSION, " reads version ", kFormatMajor, ".x");
    if (in.required_features() == nullptr) return;
    for (const auto* feature : *in.required_features())
      GRAFT_CHECK(
          InvalidProgram,
          std::find(kKnownFeatures.begin(), kKnownFeatures.end(), feature->string_view()) != kKnownFeatures.end(),
          "the program needs feature '", feature->str(), "', which this graft does not have");
  }

  // Called before each allocation.
  void spend(std::size_t bytes) {
    GRAFT_CHECK(InvalidProgram, bytes <= budget_, "the decoded program is more than ", kMaxExpansion,
                " times larger than its blob: its tables are shared too often");
    budget_ -= bytes;
  }

  // Decodes a vector of tables; an absent one is empty.
  template <typename In, typename Out, typename Fn>
  void decode_all(const flatbuffers::Vector<flatbuffers::Offset<In>>* in, std::vector<Out>& out, Fn&& decode) {
    if (in == nullptr) return;
    spend(in->size() * sizeof(Out));
    GRAFT_CHECK(InvalidProgram, in->size() * sizeof(Out) <= largest_, "a list of ", in->size(),
                " items is too long for ", "its blob: its tables are shared too often");
    out.reserve(in->size());
    for (const In* item : *in) out.push_back(decode(*item));
  }

  template <typename T>
  std::vector<T> numbers(const flatbuffers::Vector<T>* in) {
    if (in == nullptr) return {};
    spend(in->size() * sizeof(T));
    return {in->begin(), in->end()};
  }

  std::string text(const flatbuffers::String* in) {
    if (in == nullptr) return {};
    spend(in->size());
    GRAFT_CHECK(InvalidProgram, is_utf8(in->string_view()), "a string of ", in->size(), " bytes is not UTF-8");
    return in->str();
  }

  std::vector<std::string> texts(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* in) {
    std::vector<std::string> out;
    decode_all(in, out, [&](const flatbuffers::String& s) { return text(&s); });
    return out;
  }

  static Shape shape(const flatbuffers::Vector<std::int64_t>* in, std::string_view owner) {
    Shape out;
    if (in == nullptr) return out;
    GRAFT_CHECK(InvalidProgram, in->size() <= static_cast<std::size_t>(kMaxRank), owner, ": at most ", kMaxRank,
                " dimensions, found ", in->size());
    for (std::size_t d = 0; d < in->size(); ++d) {
      // The verifier checks the alignment of a vector's length, not of its elements.
      std::int64_t size;
      std::memcpy(&size, in->Data() + d * sizeof(size), sizeof(size));
      GRAFT_CHECK(InvalidProgram, size >= 0, owner, ": size of dimension ", d, " must not be negative, found ", size);
      out.push_back(size);
    }
    return out;
  }

  Op op(const fb::Op& in) { return {text(in.target()), texts(in.arg_names())}; }

  Weight weight(const fb::Weight& in) {
    Weight out;
    out.key = text(in.key());
    out.fqn = text(in.fqn());
    out.dtype = to_dtype(in.dtype());
    out.shape = shape(in.sizes(), str("weight '", out.key, "'"));
    out.storage = to_ir(in.storage());
    out.block_type = text(in.block_type());
    out.byte_size = in.byte_size();
    out.sha256 = numbers(in.sha256());
    return out;
  }

  State state(const fb::State& in) {
    State out;
    out.fqn = text(in.fqn());
    out.dtype = to_dtype(in.dtype());
    out.shape = shape(in.sizes(), str("state '", out.fqn, "'"));
    out.initial = in.initial();
    out.persistent = in.persistent();
    return out;
  }

  Method method(const fb::Method& in) {
    Method out;
    out.name = text(in.name());
    try {
      decode_body(in, out);
    } catch (const InvalidProgram& error) {
      throw InvalidProgram(str("method '", out.name, "': ", error.what()));
    }
    return out;
  }

  void decode_body(const fb::Method& in, Method& out) {
    decode_all(in.values(), out.values, [&](const fb::Value& v) { return value(v); });
    decode_all(in.nodes(), out.nodes, [&](const fb::Node& n) { return node(n); });
    decode_all(in.inputs(), out.inputs, [](const fb::Input& i) {
      return Input{i.value(), to_ir(i.kind()), i.index()};
    });
    decode_all(in.outputs(), out.outputs, [&](const fb::Output& o) {
      return Output{to_ir(o.kind()), arg(*o.arg(), 0), o.index()};
    });
    out.in_spec = text(in.in_spec());
    out.out_spec = text(in.out_spec());
    out.user_input_names = texts(in.user_input_names());
  }

  Value value(const fb::Value& in) {
    Value out;
    out.name = text(in.name());
    out.kind = to_ir(in.kind());
    out.dtype = to_dtype(in.dtype());
    decode_all(in.dims(), out.dims, [&](const fb::Dim& d) { return Dim{d.min(), d.max(), text(d.expr())}; });
    return out;
  }

  Node node(const fb::Node& in) {
    Node out;
    out.op = in.op();
    out.name = text(in.name());
    decode_all(in.args(), out.args, [&](const fb::Arg& a) { return arg(a, 0); });
    out.outputs = numbers(in.outputs());
    out.origin = text(in.origin());
    return out;
  }

  Arg arg(const fb::Arg& in, int depth) {
    GRAFT_CHECK(InvalidProgram, depth <= kMaxListDepth, "lists of arguments nest at most ", kMaxListDepth, " deep");
    Arg out;
    out.kind = to_ir(in.kind());
    out.i = in.i();
    out.f = in.f();
    out.s = text(in.s());
    decode_all(in.items(), out.items, [&](const fb::Arg& item) { return arg(item, depth + 1); });
    return out;
  }

  std::size_t budget_;
  std::size_t largest_;  // bytes of one list
};

}  // namespace

Program parse(std::span<const std::byte> blob) {
  constexpr std::size_t kIdentifierBytes = 4;
  constexpr std::size_t kHeaderBytes = sizeof(flatbuffers::uoffset_t) + kIdentifierBytes;
  GRAFT_CHECK(InvalidProgram, blob.size() >= kHeaderBytes && blob.size() <= kMaxBlobBytes, "a graft program has ",
              kHeaderBytes, " to ", kMaxBlobBytes, " bytes, found ", blob.size());
  const std::string_view identifier(reinterpret_cast<const char*>(blob.data()) + sizeof(flatbuffers::uoffset_t),
                                    kIdentifierBytes);
  GRAFT_CHECK(InvalidProgram, identifier == fb::ProgramIdentifier(), "not a graft program: its identifier is not '",
              fb::ProgramIdentifier(), "'");

  // FlatBuffers reads scalars in place, so the blob needs the alignment it was written with.
  std::vector<std::uint64_t> aligned;
  const auto* data = reinterpret_cast<const std::uint8_t*>(blob.data());
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(std::uint64_t) != 0) {
    aligned.resize(blob.size() / sizeof(std::uint64_t) + 1);
    std::memcpy(aligned.data(), blob.data(), blob.size());
    data = reinterpret_cast<const std::uint8_t*>(aligned.data());
  }

  // A table costs its parent four bytes, but shared ones count once per reference, so a quarter would be too tight.
  const auto max_tables = static_cast<flatbuffers::uoffset_t>(blob.size());
  flatbuffers::Verifier verifier(data, blob.size(), kMaxTableDepth, max_tables);
  GRAFT_CHECK(InvalidProgram, fb::VerifyProgramBuffer(verifier),
              "the graft program is damaged: an offset, a count or a required field of its ", blob.size(),
              " bytes is not valid");
  return Decoder(blob.size()).program(*fb::GetProgram(data));
}

}  // namespace graft::ir
