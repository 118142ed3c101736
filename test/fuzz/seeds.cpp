#include "seeds.h"

#include <gguf.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "base/check.h"
#include "cli/npy.h"
#include "ir/test_blob.h"
#include "llm/test_model.h"
#include "load/test_graph.h"
#include "package/container.h"
#include "package/test_package.h"
#include "plan/make_plan.h"
#include "plan/stored_plan.h"
#include "weight/test_container.h"

namespace graft::fuzz {
namespace {

constexpr const char* kGolden = GRAFT_SOURCE_DIR "/test/golden/golden.pte";

Blob read_blob(const std::string& path) {
  const std::vector<std::byte> bytes = MappedFile::read_whole(path);
  return {bytes.begin(), bytes.end()};
}

// Two small programs, and those in the golden package.
std::vector<Blob> programs() {
  ir::test::BlobOptions other;
  other.initial_key = "h0";
  std::vector<Blob> out = {ir::test::make_blob(), ir::test::make_blob(other)};
  const PteFile golden(MappedFile::open(kGolden));
  for (const auto* plan : *golden.program().execution_plan())
    for (const auto* delegate : *plan->delegates()) {
      const auto bytes = golden.processed(*delegate);
      out.emplace_back(bytes.begin(), bytes.end());
    }
  return out;
}

std::vector<Blob> packages() {
  test::PteSpec spec;
  spec.plans = {test::delegated_plan(ir::test::make_blob()), test::delegated_plan(ir::test::make_blob(), "decode")};
  test::PlanSpec& plan = spec.plans[0];
  plan.values.push_back(test::number(test::fbe::KernelTypes::Bool, 0));
  plan.inputs = {0};
  plan.outputs = {0, 1};
  plan.operators = {{"aten::copy_", ""}};
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 0, {0, 1, 2, 0}});
  spec.plans[1].inline_blob = true;
  spec.named = {{"w", test::bytes_of(64)}};
  spec.constants = {test::bytes_of(12)};
  return {make_pte(spec), read_blob(kGolden)};
}

// tokenizer.json of every model, with normalizers, pre-tokenizers, decoders and post-processors of every type.
constexpr const char* kTokenizers[] = {
    R"({"version": "1.0", "truncation": {"max_length": 16}, "added_tokens": [{"id": 9, "content": "<x>", "special": true,
        "lstrip": true, "rstrip": false, "normalized": false, "single_word": false}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"},
        "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<x>": {"id": "<x>", "ids": [9], "tokens": ["<x>"]}}},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
        "ignore_merges": false, "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "▁ab": 5, "<0xC3>": 6, "<0xA9>": 7,
        "ab": 8}, "merges": [["▁", "a"], ["▁a", "b"], ["a", "b"]]}})",
    R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex":
        "(?i:'s|'t)|\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, "decoder": {"type": "ByteLevel"},
        "post_processor": {"type": "ByteLevel"},
        "model": {"type": "BPE", "continuing_subword_prefix": "", "end_of_word_suffix": "", "vocab": {"a": 0, "b": 1, "Ġ": 2,
        "Ġa": 3, "ab": 4, "Ã": 5, "©": 6, "Ċ": 7}, "merges": ["Ġ a", "a b"]}})",
    R"({"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": true}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##",
        "cleanup": true}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20,
        "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "e": 5, "b": 6}}})",
    R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
        {"type": "Strip", "strip_left": true, "strip_right": true}]}, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁",
        "prepend_scheme": "always", "split": true}, "decoder": {"type": "Metaspace", "replacement": "▁",
        "prepend_scheme": "always"}, "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -1.5], ["b", -3.25], ["▁a", -1.0], ["ab", -1.25], ["e", -2.5]]}})",
    R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Punctuation",
        "behavior": "Removed"}, {"type": "Digits", "individual_digits": true}]}, "decoder": {"type": "CTC", "pad_token": "a",
        "word_delimiter_token": "|", "cleanup": true}, "model": {"type": "WordLevel", "unk_token": "a",
        "vocab": {"a": 0, "b": 1, "ab": 2}}})",
    R"({"pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {"type": "BPE", "unk_token": "a", "end_of_word_suffix": "</w>", "vocab": {"a": 0, "b": 1, "b</w>": 2,
        "ab</w>": 3, "a</w>": 4}, "merges": ["a b</w>"]}})"};

constexpr const char* kConfig =
    R"({"bos_token": "a", "eos_token": {"content": "b"}, "unk_token": null, "chat_template": "{% for m in messages %}{{ m.role }}: {{
        m.content | trim }}{% if not loop.last %}, {% endif %}{% endfor %}", "added_tokens_decoder": {"11": {"content": "<y>",
        "special": false}}})";

std::vector<Blob> tokenizers() {
  std::vector<Blob> out;
  for (const char* json : kTokenizers) {
    std::string plain = json, config = kConfig;  // JSON has no line breaks in strings
    for (std::string* text : {&plain, &config})
      for (std::size_t at; (at = text->find('\n')) != std::string::npos;) text->replace(at, 1, " ");
    out.push_back(joined({plain, config, "ab a\xC3\xA9 b 12"}));
    out.push_back(joined({plain, "", "A b"}));
  }
  return out;
}

// Of the kinds that models have.
constexpr const char* kTemplates[] = {
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '\\n' }}{% endfor "
    "%}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "{%- if messages[0]['role'] == 'system' -%}{%- set system = messages[0]['content'] -%}{%- set rest = messages[1:] "
    "-%}"
    "{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}{{ bos_token }}{%- for m in rest -%}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif "
    "-%}"
    "[{{ loop.index }}/{{ loop.length }}] {{ m.content }}{%- endfor -%}{{ system | length }}",
    "{% macro show(tool, indent=2) %}{{ tool | tojson(indent=indent) }}{% endmacro %}"
    "{% for t in [{'name': 'f', 'args': [1, 2.5, none, true]}] %}{{ show(t) }}{% endfor %}"
    "{% set ns = namespace(count=0, last='') %}{% for m in messages %}{% set ns.count = ns.count + 1 %}"
    "{% set ns.last = m.content %}{% endfor %}{{ ns.count ~ ns.last }}",
    "{{ messages | map(attribute='role') | list | join('-') | upper }}{{ 'a,b'.split(',')[-1] }}"
    "{{ ['x', 'y'] | first }}{{ {'a': 1, 'b': 2}.items() | list }}{{ '%s' | format(3) }}{{ range(2, 9, 3) | list }}"
    "{% if messages is iterable and messages is not string %}{{ messages | length }}{% endif %}"
    "{{ (1 + 2) * 3 // 2 - 4 % 3 }}{{ 7 / 2 }}{{ 'b' in 'abc' }}{{ none is none }}{{ 'A' | lower | replace('a', 'z') }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ 3 if false else 4 }}"
    "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}"};

std::vector<Blob> templates() {
  std::vector<Blob> out;
  for (const char* source : kTemplates) {
    out.push_back(
        joined({source, R"({"messages": [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}],
        "add_generation_prompt": true, "tools": [{"name": "f"}], "n": 3, "x": [1, 2.5, null, {"a": false}]})"}));
    out.push_back(joined({source, ""}));
  }
  return out;
}

class GgufMaker {
 public:
  GgufMaker() : head_(gguf_init_empty()) {}
  ~GgufMaker() { gguf_free(head_); }
  gguf_context* get() { return head_; }

  void strings(const char* key, const std::vector<const char*>& values) {
    std::vector<const char*> copy = values;
    gguf_set_arr_str(head_, key, copy.data(), copy.size());
  }
  // The head, a tensor of f32 [2, 4] and one of q8_0 [2, 32].
  Blob made() {
    ggml_init_params params{1 << 16, nullptr, /*no_alloc=*/true};
    ggml_context* const context = ggml_init(params);
    ggml_tensor* const a = ggml_new_tensor_2d(context, GGML_TYPE_F32, 4, 2);
    ggml_tensor* const b = ggml_new_tensor_2d(context, GGML_TYPE_Q8_0, 32, 2);
    ggml_set_name(a, "a.weight");
    ggml_set_name(b, "b.weight");
    gguf_add_tensor(head_, a);
    gguf_add_tensor(head_, b);
    Blob out(gguf_get_meta_size(head_));
    gguf_get_meta_data(head_, out.data());
    ggml_free(context);
    const Blob data = test::bytes_of(32 + 96, 3);
    out.insert(out.end(), data.begin(), data.end());
    out.resize(out.size() + 64);
    return out;
  }

 private:
  gguf_context* head_;
};

std::vector<Blob> gguf_files() {
  std::vector<Blob> out;
  for (const char* model : {"gpt2", "llama", "bert"}) {
    GgufMaker maker;
    gguf_context* const head = maker.get();
    gguf_set_val_str(head, "general.architecture", "llama");
    gguf_set_val_u32(head, "llama.block_count", 2);
    gguf_set_val_f32(head, "llama.rope.freq_base", 10000.F);
    gguf_set_val_bool(head, "general.flag", true);
    gguf_set_val_str(head, "tokenizer.ggml.model", model);
    gguf_set_val_str(head, "tokenizer.ggml.pre", "llama-bpe");
    maker.strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab", "\xC4\xA0",
                                            "\xC4\xA0"
                                            "a",
                                            "<x>", "\xE2\x96\x81", "<0x0A>"});
    const std::vector<std::int32_t> types = {2, 1, 1, 1, 1, 1, 3, 1, 6};
    gguf_set_arr_data(head, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    const std::vector<float> scores = {0, -1, -2, -3, -4, -5, 0, -6, 0};
    gguf_set_arr_data(head, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
    maker.strings("tokenizer.ggml.merges", {"a b", "\xC4\xA0 a"});
    gguf_set_val_u32(head, "tokenizer.ggml.bos_token_id", 6);
    gguf_set_val_u32(head, "tokenizer.ggml.eos_token_id", 1);
    gguf_set_val_u32(head, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_bool(head, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_str(head, "tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}");
    out.push_back(maker.made());
  }
  return out;
}

Blob with_length(const std::string& header, std::size_t data_bytes) {
  Blob out(8);
  test::put(out, 0, header.size(), 8);
  const auto text = std::as_bytes(std::span(header));
  out.insert(out.end(), text.begin(), text.end());
  const Blob data = test::bytes_of(data_bytes);
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

std::vector<Blob> safetensors_files() {
  return {
      with_length(R"({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                         "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}})",
                  32),
      with_length(R"({"c": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]},
                         "d": {"dtype": "F32", "shape": [0, 5], "data_offsets": [2, 2]}})",
                  2)};
}

std::vector<Blob> ptd_files() {
  return {test::make_ptd({{"a", test::bytes_of(24)}, {"b.weight", test::bytes_of(100)}}), test::make_ptd({{"w", {}}})};
}

std::vector<Blob> npz_files() {
  const auto npy = [](DType dtype, const Shape& shape) {
    const std::string header = cli::npy_header(dtype, shape);
    const auto text = std::as_bytes(std::span(header));
    Blob out(text.begin(), text.end());
    const Blob data = test::bytes_of(TensorDesc(dtype, shape).byte_count());
    out.insert(out.end(), data.begin(), data.end());
    return out;
  };
  return {make_npz({{"x.npy", npy(DType::f32, {2, 3})}, {"ids.npy", npy(DType::i64, {4})}}),
          make_npz({{"scalar.npy", npy(DType::f64, {})}, {"none.npy", npy(DType::u8, {0, 7})}})};
}

Digest digest_of(std::uint8_t first) {
  Digest out{};
  out[0] = first;
  return out;
}

std::vector<Blob> packed_files() {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "seed").string();
  const Blob first = test::bytes_of(100), second = test::bytes_of(64, 9);
  write_packed_file(path, std::string(kPackedOrigin), {{digest_of(1), first}, {digest_of(2), second}});
  return {read_blob(path)};
}

// y = exp(exp(x) * x) * exp(x), with buffers that are alive at the same time.
struct PlanProgram {
  test::GraphBuilder graph;
  PlanProgram() {
    const std::vector<ir::Dim> dims{test::dynamic(1, 512, "n")};
    const auto of = [](ir::ValueId id) { return ir::Arg::of_value(id); };
    const auto x = graph.input("x", DType::f32, dims);
    const auto e = graph.node("aten.exp.default", {{"self", of(x)}}, DType::f32, dims);
    const auto p = graph.node("aten.mul.Tensor", {{"self", of(e)}, {"other", of(x)}}, DType::f32, dims);
    const auto q =
        graph.node("aten.cumsum.default", {{"self", of(p)}, {"dim", test::of_int(0)}, {"dtype", test::of_none()}},
                   DType::f32, dims);
    graph.output(graph.node("aten.mul.Tensor", {{"self", of(q)}, {"other", of(e)}}, DType::f32, dims));
  }
  Plan plan(std::int64_t n, const StoredPlan* stored = nullptr) {
    InputDesc x;
    x.desc = TensorDesc(DType::f32, Shape{n});
    PlanOptions options;
    options.stored = stored;
    return make_plan(graph.program(), graph.method(), std::span(&x, 1), options);
  }
};
PlanProgram& plan_program() {
  static PlanProgram program;
  return program;
}

std::vector<Blob> plans() {
  std::vector<Blob> out;
  for (const std::int64_t n : {1, 64, 500})
    out.push_back(encode(stored_plan_of(plan_program().plan(n), "forward", 1, 1), plan_origin("cpu")));
  return out;
}

// A sum over all calls.
struct Summing {
  test::GraphBuilder graph;
  std::shared_ptr<const Program> program;
  Summing() {
    const auto of = [](ir::ValueId id) { return ir::Arg::of_value(id); };
    const auto x = graph.input("x", DType::f32, {test::fixed(4)});
    const auto sum = graph.state("sum", DType::f32, {4});
    const auto next = graph.node("aten.add.Tensor", {{"self", of(sum)}, {"other", of(x)}, {"alpha", test::of_int(1)}},
                                 DType::f32, {test::fixed(4)});
    graph.mutate_state(0, next);
    graph.output(next);
    program = graph.build();
  }
};

struct States {
  Summing summing;
  test::SmallLanguageModel language;
  Session sums{summing.program, one_thread()};
  Session tokens{language.model->program(), one_thread()};

  static SessionOptions one_thread() {
    SessionOptions options;
    options.threads = 1;
    options.kv.rows = 2;
    options.kv.length = 24;
    return options;
  }
};
States& with_states() {
  static States states;
  return states;
}

std::vector<Blob> state_files() {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "states").string();
  std::vector<Blob> out;
  for (Session* session : sessions_with_states()) {
    session->reset();
    session->save(path);
    out.push_back(read_blob(path));
    use_states(*session);
    session->save(path);
    out.push_back(read_blob(path));
    session->reset();
  }
  return out;
}

constexpr Target kTargets[] = {
    {"ir", feed_ir, mutate_ir, programs, 30},
    {"package", feed_package, mutate_package, packages, 30},
    {"plan", feed_plan, mutate_plan, plans, 40},
    {"states", feed_states, mutate_signed, state_files, 5},
    {"packed", feed_packed, mutate_packed, packed_files, 5},
    {"tokenizer", feed_tokenizer, mutate_tokenizer, tokenizers, 20},
    {"template", feed_template, mutate_template, templates, 20},
    {"gguf", feed_gguf, mutate_gguf, gguf_files, 20},
    {"safetensors", feed_safetensors, mutate_safetensors, safetensors_files, 10},
    {"ptd", feed_ptd, mutate_ptd, ptd_files, 10},
    {"npz", feed_npz, mutate_npz, npz_files, 10},
    {"audio", feed_audio, mutate_audio, sounds, 20},
    {"image", feed_image, mutate_audio, pictures, 20},
    {"message", feed_message, mutate_message, messages, 50},
    {"request", feed_request, mutate_request, requests, 50},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& target_named(std::string_view name) {
  std::string names;
  for (const Target& target : targets()) {
    if (target.name == name) return target;
    names += std::string(names.empty() ? "" : ", ") + target.name;
  }
  throw InvalidArgument(str("nothing to fuzz is named '", name, "', there are ", names));
}

std::vector<std::pair<Digest, std::size_t>> packed_seed_entries() { return {{digest_of(1), 100}, {digest_of(2), 64}}; }

void plan_with(std::span<const std::byte> bytes, bool& decoded, bool& used) {
  const std::optional<StoredPlan> stored = decode_stored_plan(bytes, plan_origin("cpu"), "the plan");
  if (!stored) return;
  decoded = true;
  for (const std::int64_t n : {1, 64, 500}) used |= plan_program().plan(n, &*stored).layout_was_stored;
}

std::vector<Session*> sessions_with_states() { return {&with_states().sums, &with_states().tokens}; }

void use_states(Session& session) {
  if (&session == &with_states().sums) {
    std::vector<float> x(4, 0.5F);
    session.run("forward", std::vector{test::tensor(x, {4})});
    return;
  }
  // Each row of the cache goes on where it is.
  std::vector<std::int64_t> ids = {3, 4}, at, keep = {0};
  for (const std::int64_t length : session.kv_lengths()) at.push_back(length);
  session.run("step", std::vector{test::tensor(ids, DType::i64, {2, 1}), test::tensor(at, DType::i64, {2, 1}),
                                  test::tensor(at, DType::i64, {2, 1}), test::tensor(keep, DType::i64, {1})});
  for (std::int64_t row = 0; row < 2; ++row) session.kv_shortest(row);
  session.kv_truncate(1);
}

}  // namespace graft::fuzz
