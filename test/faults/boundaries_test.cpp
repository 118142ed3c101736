#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "graft/adapter.h"
#include "graft/build.h"
#include "graft/flow.h"
#include "graft/grammar.h"
#include "graft/image.h"
#include "graft/llm.h"
#include "graft/op.h"
#include "graft/pipeline.h"
#include "graft/predicate.h"
#include "graft/quantize.h"
#include "graft/registry.h"
#include "graft/speaker.h"
#include "graft/tokenizer.h"
#include "graft/transcriber.h"
#include "inject.h"
#include "ir/test_blob.h"
#include "llm/test_model.h"
#include "load/test_graph.h"
#include "public_functions.h"
#include "session/test_kv_model.h"
#include "weight/test_container.h"

// Every function of the public headers, while allocations inside throw what libraries may throw: an error of graft's
// leaves it, OutOfMemory for std::bad_alloc, and the object works after.
namespace graft::faults {
namespace {

using test::tensor;
using Tokens = Decoder::Tokens;

constexpr const char* kGolden = GRAFT_SOURCE_DIR "/test/golden/golden.pte";
constexpr const char* kSpeaker = GRAFT_BUILD_DIR "/speaker.pte";  // of make_speaker.py
constexpr const char* kCtc = GRAFT_BUILD_DIR "/ctc.pte";          // of make_ctc.py
constexpr const char* kTokenizer =
    R"({"pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": ["a b"]}})";
constexpr const char* kChat = R"({"messages": [{"role": "user", "content": "a"}]})";
constexpr const char* kTemplate = "{% for m in messages %}{{ m.role | upper }}{% endfor %}";

struct Boundary {
  std::string name;  // as the header has it, with its class
  std::function<void()> call;
  std::function<void()> prepare = [] {};  // before each call, without a fault
};

// What the caller makes, without faults.
template <typename Make>
auto own(const Make& make) {
  graft_faults_pause(true);
  auto made = make();
  graft_faults_pause(false);
  return made;
}

// Objects whose functions are called, made once.
struct World {
  test::TemporaryFolder folder;
  std::shared_ptr<const Program> program = Program::load(kGolden);
  SessionOptions one_thread = [] {
    SessionOptions options;
    options.threads = 1;
    return options;
  }();
  Session session{program, one_thread};
  std::vector<std::int64_t> ids = std::vector<std::int64_t>(10, 3), mask = std::vector<std::int64_t>(10, 1);
  std::vector<Value> inputs = {tensor(ids, DType::i64, {2, 5}), tensor(mask, DType::i64, {2, 5})};
  std::vector<std::vector<float>> output_memory;
  std::vector<Value> outputs = made_outputs();
  test::KvModel kv;
  Session kv_session{kv.program, one_thread};
  test::SmallLanguageModel small;
  std::shared_ptr<const LanguageModel> model = small.with_words();
  Decoder decoder{model, {.threads = 1, .rows = 2}};
  TextGenerator generator{model, {.threads = 1}};
  BatchGenerator batch{model, {.threads = 1}};
  test::SmallLanguageModel adaptable{{}, 0.5, 1, test::SmallLanguageModel::kContext, 4};
  std::vector<float> low_rank = std::vector<float>(64, 0.25f);
  std::vector<AdapterLayer> adapter_layers = {
      {"head", {low_rank.data(), DType::f32, {2, 16}}, {low_rank.data(), DType::f32, {24, 2}}, 1}};
  std::shared_ptr<const Adapter> adapter = Adapter::of(adaptable.model->program(), adapter_layers);
  Adapters adapters{adaptable.model->program()};
  std::string adapter_folder = written_adapter();
  TextGenerator adapted{adaptable.model, {.threads = 1}};
  GenerationOptions with_adapter = [this] {
    GenerationOptions options;
    options.max_new_tokens = 3;
    options.adapters = {adapter};
    return options;
  }();
  test::SmallPictureModel small_pictures;
  std::vector<Image> seen{test::SmallPictureModel::picture(5, 7, 1)};
  ImagePrompt image_prompt = small_pictures.pictures->encode_with_images("1t <image> 2t", seen);
  TextGenerator seeing{small_pictures.pictures, {.threads = 1}};
  BatchGenerator seeing_batch{small_pictures.pictures, {.threads = 1}};
  test::SmallSpeechModel small_speech;
  Transcriber transcriber{small_speech.speech, 1};
  Audio audio{std::vector<float>(150, 0.5f), 50};
  Transcription transcription = transcriber.transcribe(audio);
  Transcriber ctc{kCtc, {}, "", 1};
  Audio spoken{std::vector<float>(2000, 0.5f), 16000};
  std::vector<std::byte> wav = made_wav();
  std::string wav_path = written_wav();
  test::SmallAudioModel small_audio;
  std::vector<Audio> heard{test::SmallAudioModel::sound(40, 1)};
  Speaker speaker{kSpeaker, {}, 1};
  Audio somebody{std::vector<float>(100, 0.5f), 2400};
  Voice voice = speaker.voice(somebody);
  SpeakingOptions speaking = [] {
    SpeakingOptions options;
    options.max_frames = 2;
    return options;
  }();
  Image image{4, 6, std::vector<std::uint8_t>(72, 100)};
  std::vector<std::byte> bmp = made_bmp();
  std::string bmp_path = folder.write("picture.bmp", bmp);
  ImageProcessor processor{{.shortest_edge = 3, .crop = ImageProcessing::Size{2, 2}}};
  std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::from_json(kTokenizer);
  Detokenizer detokenizer{tokenizer};
  std::vector<std::string> words{"a", "b", "ab", ""};
  std::vector<std::int64_t> ends{3};
  std::shared_ptr<const GrammarVocabulary> vocabulary = GrammarVocabulary::of(words, ends);
  std::shared_ptr<Grammar> grammar = Grammar::regex("(ab|b)+", vocabulary);
  std::vector<std::vector<GrammarPart>> parts{{{GrammarPart::Kind::literal, "a"}, {GrammarPart::Kind::regex, "b*"}}};
  std::vector<std::int64_t> prompt{1, 2, 3};
  GenerationOptions generation = [] {
    GenerationOptions options;
    options.max_new_tokens = 3;
    return options;
  }();
  std::vector<float> floats = std::vector<float>(64, 0.5f);
  std::vector<std::byte> out = std::vector<std::byte>(4096);
  graft::Pipeline pipeline{{std::make_shared<Session>(program, one_thread)}};
  std::unique_ptr<Flow> flow = std::make_unique<Flow>(flow_graph());
  std::vector<float> keys = std::vector<float>(64), values = std::vector<float>(64);
  std::vector<std::byte> token;
  test::GraphBuilder embedding;
  std::shared_ptr<const Program> embedder = embedding_program();
  TextEncoder encoder{embedder, tokenizer, one_thread};
  static inline int registered = 0;  // operators stay for good
  const std::string states_path = (folder.path() / "states").string();
  const std::string tokenizer_path =
      folder.write("tokenizer.json", std::as_bytes(std::span(std::string_view(kTokenizer))));
  const decltype(ir::test::make_blob()) blob = ir::test::make_blob();
  std::shared_ptr<const Program> other;  // to be unloaded

  // As peft writes it.
  std::string written_adapter() const {
    const std::string config = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {"hea.": 2}})";
    folder.write("adapter_config.json", std::as_bytes(std::span(config)));
    std::string head =
        R"({"head.lora_A.weight": {"dtype": "F32", "shape": [2, 16], "data_offsets": [0, 128]},
            "head.lora_B.weight": {"dtype": "F32", "shape": [24, 2], "data_offsets": [128, 320]}})";
    head.resize((head.size() + 7) / 8 * 8, ' ');
    std::vector<std::byte> file(8 + head.size() + 320);
    const std::uint64_t size = head.size();
    std::memcpy(file.data(), &size, sizeof(size));
    std::memcpy(file.data() + 8, head.data(), head.size());
    folder.write("adapter_model.safetensors", file);
    return folder.path().string();
  }

  // 16 bits, one channel, 50 samples a second.
  std::vector<std::byte> made_wav() const {
    const std::string_view head("RIFF\x44\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x32\0\0\0\x64\0\0\0\2\0\x10\0data\x20\0\0\0",
                                44);
    std::vector<std::byte> file(head.size() + 32, std::byte{1});
    std::memcpy(file.data(), head.data(), head.size());
    return file;
  }
  std::vector<std::byte> made_bmp() const {  // two pixels of 24 bits
    const std::string_view head("BM\x3e\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\2\0\0\0\1\0\0\0\1\0\x18\0", 30);
    std::vector<std::byte> file(62, std::byte{0});
    std::memcpy(file.data(), head.data(), head.size());
    return file;
  }
  std::string written_wav() const { return folder.write("sound.wav", made_wav()); }

  std::vector<Value> made_outputs() {
    std::vector<Value> made = session.output_values("encode", inputs);
    for (Value& output : made)
      if (output.kind == Value::Kind::tensor)
        output.tensor.data =
            output_memory.emplace_back(static_cast<std::size_t>(output.tensor.shape.numel()) * 2).data();
    return made;
  }

  std::shared_ptr<const Program> embedding_program() {
    const std::vector<ir::Dim> dims = {test::fixed(1), test::dynamic(1, 16, "t")};
    const auto tokens = embedding.input("input_ids", DType::i64, dims);
    const auto table = embedding.weight("table", std::vector<float>(12, 0.5f), {3, 4});
    const ir::Arg no{ir::Arg::Kind::boolean, 0, 0, {}, {}};
    embedding.output(embedding.node("aten.embedding.default",
                                    {{"weight", ir::Arg::of_value(table)},
                                     {"indices", ir::Arg::of_value(tokens)},
                                     {"padding_idx", test::of_int(-1)},
                                     {"scale_grad_by_freq", no},
                                     {"sparse", no}},
                                    DType::f32, {dims[0], dims[1], test::fixed(4)}));
    return embedding.build();
  }

  std::vector<std::shared_ptr<Session>> sessions() const { return {std::make_shared<Session>(program, one_thread)}; }

  FlowGraph flow_graph() const {
    FlowGraph graph;
    graph.inputs = {"ids", "mask"};
    FlowStage stage;
    stage.name = "encode";
    stage.sessions = {std::make_shared<Session>(program, one_thread)};
    stage.method = "encode";
    graph.stages = {stage};
    for (const ValueInfo& input : program->method("encode").inputs)
      graph.connections["encode." + input.name] = graph.connections.empty() ? "ids" : "mask";
    for (const ValueInfo& output : program->method("encode").outputs) graph.outputs.push_back("encode." + output.name);
    return graph;
  }
  void fill_kv() {
    std::vector<float> x(64, 0.1f);
    std::vector<std::int64_t> at = {kv_session.kv_lengths().empty() ? 0 : kv_session.kv_lengths()[0]};
    if (at[0] > 50) kv_session.kv_truncate(0), at[0] = 0;
    kv_session.run("forward", std::vector{tensor(x, {1, 2, 1, 32}), tensor(at, DType::i64, {1, 1})});
  }
};

std::vector<Boundary> boundaries(World& w) {
  return {
      {"Program::load", [&] { Program::load(kGolden); }},
      {"Program::load_memory",
       [&] {
         static const AlignedMemory memory = [] {
           std::ifstream file(kGolden, std::ios::binary);
           const std::string text(std::istreambuf_iterator<char>(file), {});
           AlignedMemory out(text.size());
           std::memcpy(out.data(), text.data(), text.size());
           return out;
         }();
         Program::load_memory({memory.data(), memory.size()});
       }},
      {"Program::from_ir",
       [&] {
         static const auto blob = ir::test::make_blob();
         static const std::vector<std::byte> weight(64);
         Program::from_ir(blob, [&](std::string_view) { return std::span<const std::byte>(weight); });
       }},
      {"Program::method_names", [&] { w.program->method_names(); }},
      {"Program::method", [&] { w.program->method("encode"); }},
      {"Program::describe", [&] { w.program->describe(true); }},
      {"Program::stats", [&] { w.program->stats(); }},
      {"Program::shrink", [&] { w.program->shrink(); }},
      {"pack", [&] { pack(kGolden, w.folder.path() / "packed"); }},
      {"matmul_precision_named", [&] { matmul_precision_named("medium"); }},
      {"kv_type_named", [&] { kv_type_named("f16"); }},
      {"devices", [&] { devices(); }},
      {"build_info", [&] { build_info(); }},
      {"set_log_callback",
       [&] {
         set_log_callback([](std::string_view, std::string_view) {});
         set_log_callback(nullptr);
       }},
      {"Arena", [&] { Arena(); }},
      {"States", [&] { States(); }},
      {"CancelToken", [&] { CancelToken(); }},
      {"Session", [&] { Session(w.program, w.one_thread); }},
      {"Adapter::load", [&] { Adapter::load(w.adaptable.model->program(), w.adapter_folder); }},
      {"Adapter::of", [&] { Adapter::of(w.adaptable.model->program(), w.adapter_layers); }},
      {"adapter_modules", [&] { adapter_modules(*w.adaptable.model->program()); }},
      {"Adapters::load", [&] { w.adapters.load("a", w.adapter_folder); }},
      {"Adapters::add", [&] { w.adapters.add("b", w.adapter); }},
      {"Adapters::remove", [&] { w.adapters.remove("c"); }, [&] { w.adapters.add("c", w.adapter); }},
      {"Adapters::find", [&] { w.adapters.find("c"); }, [&] { w.adapters.add("c", w.adapter); }},
      {"Adapters::names", [&] { w.adapters.names(); }},
      {"Session::run", [&] { w.session.run("encode", w.inputs); }},
      {"Session::output_values", [&] { w.session.output_values("encode", w.inputs); }},
      {"Session::run_into",
       [&] {
         w.session.run_into("encode", w.inputs, std::span(w.outputs));
         w.session.run_into("encode", w.inputs, [&](std::span<Value> placed) {
           for (std::size_t i = 0; i < placed.size(); ++i) placed[i].tensor.data = w.outputs[i].tensor.data;
         });
       }},
      {"Session::submit", [&] { w.session.submit("encode", w.inputs).get(); }},
      {"Session::close", [&] { Session(w.program, w.one_thread).close(); }},
      {"Session::plan", [&] { w.session.plan("encode", w.inputs); }},
      {"Session::stored_plan", [&] { w.session.stored_plan("encode", w.inputs); }},
      {"Session::stored_plans", [&] { w.session.stored_plans("encode", w.inputs); }},
      {"Session::freeze_input",
       [&] {
         Session own(w.program, w.one_thread);
         own.freeze_input("encode", 0);
       }},
      {"Session::states", [&] { w.kv_session.states(); }},
      {"Session::reset", [&] { w.kv_session.reset(); }},
      {"Session::fork", [&] { w.kv_session.fork(); }},
      {"Session::kv_lengths", [&] { w.kv_session.kv_lengths(); }},
      {"Session::kv_truncate", [&] { w.kv_session.kv_truncate(1); }},
      {"Session::kv_shortest", [&] { w.kv_session.kv_shortest(0); }},
      {"Session::kv_select",
       [&] {
         const std::int64_t rows[] = {0};
         w.kv_session.kv_select(rows);
       }},
      {"Session::kv_resize",
       [&] {
         w.kv_session.kv_resize(2, 60);
         w.kv_session.kv_resize(1, 64);
       }},
      {"Session::kv_read",
       [&] {
         w.fill_kv();
         w.kv_session.kv_read(0, 0, 0, {w.keys.data(), DType::f32, {2, 1, 32}},
                              {w.values.data(), DType::f32, {2, 1, 32}});
       }},
      {"Session::kv_write",
       [&] {
         w.fill_kv();
         w.kv_session.kv_write(0, 0, 0, {w.keys.data(), DType::f32, {2, 1, 32}},
                               {w.values.data(), DType::f32, {2, 1, 32}});
       }},
      {"Session::kv_token_bytes", [&] { w.kv_session.kv_token_bytes(); }},
      {"Session::kv_copy_out",
       [&] {
         w.fill_kv();
         w.token.resize(w.kv_session.kv_token_bytes());
         w.kv_session.kv_copy_out(0, 0, 1, w.token);
       }},
      {"Session::kv_copy_in",
       [&] {
         w.token.resize(w.kv_session.kv_token_bytes());
         w.kv_session.kv_copy_in(0, 0, 1, w.token);
       }},
      {"Session::kv_set_lengths",
       [&] {
         const std::int64_t lengths[] = {1};
         w.fill_kv();
         w.kv_session.kv_set_lengths(lengths);
       }},
      {"Session::save", [&] { w.session.save(w.states_path); }},
      {"Session::restore", [&] { w.session.restore(w.states_path); }, [&] { w.session.save(w.states_path); }},
      {"refused_nodes", [&] { refused_nodes(w.blob); }},
      {"preserved_targets", [&] { preserved_targets(); }},
      {"operator_targets", [&] { operator_targets(); }},
      {"host_operator_targets", [&] { host_operator_targets(); }},
      {"storable_type",
       [&] {
         storable_type("q8_0", {2, 32});
       }},
      {"stored_byte_count",
       [&] {
         stored_byte_count("q8_0", {2, 32});
       }},
      {"packed_byte_count",
       [&] {
         packed_byte_count("q8_0", {2, 32});
       }},
      {"quantize",
       [&] {
         quantize({w.floats.data(), DType::f32, {2, 32}}, "q8_0",
                  std::span(w.out).first(stored_byte_count("q8_0", {2, 32})), 2);
       }},
      {"pack_blocks",
       [&] {
         std::vector<std::byte> blocks(stored_byte_count("q8_0", {2, 32}));
         pack_blocks(blocks, "q8_0", {2, 32}, std::span(w.out).first(packed_byte_count("q8_0", {2, 32})));
       }},
      {"Registry::models", [&] { Registry::models(); }},
      {"Registry::unload",
       [&] {
         std::uint64_t last = 0;
         for (const ModelInfo& model : Registry::models()) last = std::max(last, model.id);
         Registry::unload(last);
       },
       [&] { w.other = test::SmallLanguageModel().model->program(); }},
      {"register_op",
       [&] {
         register_op(own([&] {
           OpDefinition op;
           op.target = str("faults.op", ++w.registered, ".default");
           op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
           op.run = [](const OpRun&) {};
           return op;
         }));
         register_op(own([&] { return str("faults.program", ++w.registered, ".default"); }), w.embedder, "forward");
       }},
      {"load_ops",
       [&] {
         try {
           load_ops("/no/such/library.so");
         } catch (const SystemError& e) {
           if (std::string_view(e.what()).find("does not load") == std::string_view::npos) throw;
         }
       }},
      {"Pipeline", [&] { graft::Pipeline(own([&] { return w.sessions(); })); }},
      {"Pipeline::submit",
       [&] {
         w.pipeline.submit(0, "encode", w.inputs).get();
         w.pipeline.submit(0, [](Session&) {}).get();
       }},
      {"Pipeline::try_submit",
       [&] {
         if (auto made = w.pipeline.try_submit(0, "encode", w.inputs)) made->get();
         if (auto made = w.pipeline.try_submit(0, [](Session&) {})) made->get();
       }},
      {"Pipeline::drain", [&] { w.pipeline.drain(); }},
      {"Pipeline::shutdown", [&] { graft::Pipeline(own([&] { return w.sessions(); })).shutdown(); }},
      {"Pipeline::counters", [&] { w.pipeline.counters(); }},
      {"Flow", [&] { Flow(own([&] { return w.flow_graph(); })); }},
      {"Flow::submit", [&] { w.flow->submit(w.inputs).get(); }},
      {"Flow::try_submit",
       [&] {
         if (auto made = w.flow->try_submit(w.inputs)) made->get();
       }},
      {"Flow::drain", [&] { w.flow->drain(); }},
      {"Flow::drain_for", [&] { w.flow->drain_for(std::chrono::milliseconds(1)); }},
      {"Flow::shutdown", [&] { Flow(own([&] { return w.flow_graph(); })).shutdown(); }},
      {"Flow::is_list", [&] { w.flow->is_list(0); }},
      {"Flow::counters", [&] { w.flow->counters(); }},
      {"Tokenizer::from_json", [&] { Tokenizer::from_json(kTokenizer); }},
      {"Tokenizer::from_gguf",
       [&] {
         try {
           Tokenizer::from_gguf(kGolden);
         } catch (const InvalidProgram&) {  // it is none
         }
       }},
      {"Tokenizer::load", [&] { Tokenizer::load(w.tokenizer_path); }},
      {"Tokenizer::encode", [&] { w.tokenizer->encode("ab a"); }},
      {"Tokenizer::decode",
       [&] {
         w.tokenizer->decode(std::vector<std::int64_t>{0, 2});
       }},
      {"Tokenizer::piece", [&] { w.tokenizer->piece(2); }},
      {"Tokenizer::token_bytes", [&] { w.tokenizer->token_bytes(2); }},
      {"Tokenizer::find", [&] { w.tokenizer->find("ab"); }},
      {"Tokenizer::identity", [&] { w.tokenizer->identity(); }},
      {"Tokenizer::apply_chat_template", [&] { w.tokenizer->apply_chat_template(kChat, kTemplate); }},
      {"Detokenizer", [&] { Detokenizer{w.tokenizer}; }},
      {"Detokenizer::add", [&] { w.detokenizer.add(0); }},
      {"Detokenizer::finish", [&] { w.detokenizer.finish(); }},
      {"LanguageModel::is_package", [&] { LanguageModel::is_package(kGolden); }},
      {"LanguageModel::load",
       [&] {
         try {
           LanguageModel::load(kGolden);
         } catch (const InvalidArgument&) {  // it is none
         }
       }},
      {"LanguageModel", [&] { LanguageModel(w.model->program(), w.model->info(), w.model->tokenizer()); }},
      {"LanguageModel::tokenizer", [&] { w.model->tokenizer(); }},
      {"LanguageModel::encode", [&] { w.model->encode("1t 2t"); }},
      {"LanguageModel::encode_with_images",
       [&] { w.small_pictures.pictures->encode_with_images("1t <image> 2t", w.seen); }},
      {"image_prompt", [&] { image_prompt(*w.small_pictures.pictures, "1t", w.seen); }},
      {"Decoder", [&] { Decoder(w.model, {.threads = 1}); }},
      {"Decoder::encode",
       [&] {
         const Tokens row(w.prompt);
         try {
           w.decoder.encode(std::span(&row, 1));
         } catch (const InvalidArgument&) {  // it has no encoder
         }
       }},
      {"Decoder::run",
       [&] {
         const Tokens row(w.prompt);
         w.decoder.truncate(0, 0);
         w.decoder.run(std::span(&row, 1), 3, 1);
       }},
      {"Decoder::prepare", [&] { w.decoder.prepare(1, 2, 1); }},
      {"Decoder::prefill",
       [&] {
         const Tokens row(w.prompt);
         w.decoder.truncate(0, 0);
         w.decoder.prefill(std::span(&row, 1));
       }},
      {"Decoder::score",
       [&] {
         w.decoder.truncate(0, 0);
         w.decoder.score(w.prompt, [](std::span<float>) {});
       }},
      {"Decoder::score", [&] { w.seeing.decoder().score(w.image_prompt, [](std::span<float>) {}); }},
      {"Decoder::truncate", [&] { w.decoder.truncate(0, 0); }},
      {"Decoder::length", [&] { w.decoder.length(0); }},
      {"Decoder::shortest", [&] { w.decoder.shortest(0); }},
      {"token_probabilities",
       [&] { token_probabilities(w.floats, std::vector<std::int64_t>{1}, GenerationOptions{}); }},
      {"TextGenerator", [&] { TextGenerator(w.model, {.threads = 1}); }},
      {"TextGenerator::generate", [&] { w.generator.generate(w.prompt, w.generation); }},
      {"TextGenerator::generate", [&] { w.adapted.generate(w.prompt, w.with_adapter); }},
      {"TextGenerator::generate", [&] { w.seeing.generate(w.image_prompt, w.generation); }},
      {"BatchGenerator", [&] { BatchGenerator(w.model, {.threads = 1}); }},
      {"BatchGenerator::submit", [&] { w.batch.cancel(w.batch.submit(w.prompt, w.generation)); }},
      {"BatchGenerator::submit",
       [&] {
         const auto id = w.seeing_batch.submit(w.image_prompt, w.generation, {});
         while (w.seeing_batch.step()) {
         }
         w.seeing_batch.take(id);
       }},
      {"BatchGenerator::step",
       [&] {
         const auto id = w.batch.submit(w.prompt, w.generation);
         while (w.batch.step()) {
         }
         w.batch.take(id);
       }},
      {"BatchGenerator::cancel", [&] { w.batch.cancel(w.batch.submit(w.prompt, w.generation)); }},
      {"BatchGenerator::take",
       [&] {
         const auto id = w.batch.submit(w.prompt, w.generation);
         w.batch.cancel(id);
         w.batch.take(id);
       }},
      {"BatchGenerator::state",
       [&] {
         const auto id = w.batch.submit(w.prompt, w.generation, {.logprobs = 2, .prompt_logprobs = true});
         w.batch.state(id);
         w.batch.cancel(id);
         w.batch.take(id);
       }},
      {"BatchGenerator::prepare", [&] { w.batch.prepare(1); }},
      {"BatchGenerator::prefix_cache", [&] { w.batch.prefix_cache(); }},
      {"PrefixCacheOptions::block_bytes", [&] { PrefixCacheOptions::block_bytes(w.model, {.threads = 1}); }},
      {"chat_prompt",
       [&] {
         const std::vector<ChatMessage> messages = {{"user", "hello"}};
         chat_prompt(*w.model, messages, kTemplate);
       }},
      {"perplexity",
       [&] {
         perplexity(w.model, std::vector<std::int64_t>{1, 2, 3, 4, 5}, {.window = 2, .threads = 1});
       }},
      {"TextEncoder",
       [&] {
         try {
           TextEncoder(w.program, w.tokenizer, w.one_thread);
         } catch (const InvalidArgument&) {  // a program of other inputs
         }
       }},
      {"TextEncoder::embed", [&] { w.encoder.embed(std::vector<std::string>{"ab a"}); }},
      {"TextEncoder::embed_ids",
       [&] {
         w.encoder.embed_ids(std::vector<std::vector<std::int64_t>>{{2, 0}});
       }},
      {"Shape",
       [&] {
         Shape({2, 3}).push_back(4);
       }},
      {"Shape::push_back",
       [&] {
         Shape({2, 3}).push_back(4);
       }},
      {"Shape::numel", [&] { w.inputs[0].tensor.shape.numel(); }},
      {"Shape::str", [&] { w.inputs[0].tensor.shape.str(); }},
      {"GrammarVocabulary::of", [&] { GrammarVocabulary::of(w.words, w.ends); }},
      {"GrammarVocabulary::of", [&] { GrammarVocabulary::of(*w.tokenizer, w.ends); }},
      {"Grammar::json_schema",
       [&] {
         Grammar::json_schema(R"({"type": "object", "properties": {"a": {"enum": ["b", 1]}}, "required": ["a"],
             "additionalProperties": false})",
                              w.vocabulary);
       }},
      {"decode_audio", [&] { decode_audio(w.wav); }},
      {"load_audio", [&] { load_audio(w.wav_path); }},
      {"decode_image", [&] { decode_image(w.bmp); }},
      {"load_image", [&] { load_image(w.bmp_path); }},
      {"resize", [&] { resize(w.image, 3, 2, Resample::bicubic); }},
      {"ImageProcessor",
       [&] {
         ImageProcessor({.size = ImageProcessing::Size{2, 2}}, w.words);
       }},
      {"ImageProcessor::load",
       [&] {
         try {
           ImageProcessor::load(kGolden);
         } catch (const InvalidArgument&) {
           return;  // it has no processor
         }
       }},
      {"ImageProcessor::is_in", [&] { ImageProcessor::is_in(kGolden); }},
      {"ImageProcessor::pixels", [&] { w.processor.pixels(w.image); }},
      {"resample", [&] { resample(w.audio.samples, 50, 100); }},
      {"write_transcript", [&] { write_transcript(w.transcription, TranscriptFormat::json); }},
      {"write_transcript", [&] { write_transcript(w.transcription, TranscriptFormat::srt); }},
      {"encode_wav", [&] { encode_wav(w.audio); }},
      {"save_audio", [&] { save_audio(w.audio, w.wav_path + ".out"); }},
      {"LanguageModel::encode_with_audio", [&] { w.small_audio.audio->encode_with_audio("1t <audio>", w.heard); }},
      {"audio_prompt", [&] { audio_prompt(*w.small_audio.audio, "1t", w.heard); }},
      {"Speaker", [&] { Speaker(kSpeaker, {}, 1); }},
      {"Speaker::voice", [&] { w.speaker.voice(w.somebody); }},
      {"Speaker::speak", [&] { w.speaker.speak("Hi", &w.voice, w.speaking); }},
      {"Speaker::chunks", [&] { w.speaker.chunks("Hi. You."); }},
      {"Transcriber", [&] { Transcriber(w.small_speech.speech, 1); }},
      {"Transcriber", [&] { Transcriber(kCtc, {}, "", 1); }},
      {"Transcriber::is_ctc_package", [&] { Transcriber::is_ctc_package(kGolden); }},
      {"Transcriber::transcribe", [&] { w.transcriber.transcribe(w.audio); }},
      {"Transcriber::transcribe", [&] { w.ctc.transcribe(w.spoken); }},
      {"Transcriber::model",
       [&] {
         try {
           w.ctc.model();
         } catch (const Unsupported&) {
           return;  // it is no language model
         }
       }},
      {"Transcriber::decoder", [&] { w.transcriber.decoder(); }},
      {"Transcriber::features", [&] { w.transcriber.features(w.audio.samples); }},
      {"Transcriber::languages", [&] { w.transcriber.languages(); }},
      {"Grammar::json_object", [&] { Grammar::json_object(w.vocabulary); }},
      {"Grammar::regex", [&] { Grammar::regex("[ab]{1,3}", w.vocabulary); }},
      {"Grammar::ebnf", [&] { Grammar::ebnf("root ::= \"a\" root | \"b\"", w.vocabulary); }},
      {"Grammar::lark", [&] { Grammar::lark("start: \"a\" start | \"b\"", w.vocabulary); }},
      {"Grammar::choice", [&] { Grammar::choice(w.words, w.vocabulary); }},
      {"Grammar::parts", [&] { Grammar::parts(w.parts, 1, -1, " ", w.vocabulary); }},
      {"Grammar::mask", [&] { w.grammar->mask(); }},
      {"Grammar::matches", [&] { w.grammar->matches("abb"); }},
      {"Grammar::begins", [&] { w.grammar->begins("a"); }},
      {"TokenMask::allowed",
       [&] {
         std::uint32_t bits = 0;
         w.grammar->mask()->allowed({&bits, 1});
       }},
      {"TokenMask::accept", [&] { w.grammar->mask()->accept(1); }},
      {"TokenMask::done", [&] { w.grammar->mask()->done(); }},
      {"TensorDesc",
       [&] {
         TensorDesc(DType::f32, {2, 3});
       }},
      {"TensorDesc::byte_count",
       [&] {
         TensorDesc(DType::f32, {2, 3}).byte_count();
       }},
      {"TensorDesc::str",
       [&] {
         TensorDesc(DType::f32, {2, 3}).str();
       }},
  };
}

TEST(Boundaries, EveryPublicFunctionIsListed) {
  World world;
  std::set<std::string> listed = kCannotFail;
  for (const Boundary& boundary : boundaries(world)) listed.insert(boundary.name);
  std::string missing;
  std::size_t count = 0;
  for (const std::string& name : declared()) {
    ++count;
    if (!listed.contains(name)) missing += " " + name;
  }
  EXPECT_EQ(missing, "") << "not in boundaries()";
  EXPECT_GT(count, 120u);
}

constexpr long kMostArguments = 8;

// Their arguments need no memory.
const std::set<std::string> kPlainArguments = {"Grammar::mask",      "Grammar::matches",  "Grammar::begins",
                                               "TokenMask::allowed", "TokenMask::accept", "TokenMask::done"};

class ForeignExceptions : public ::testing::TestWithParam<const char*> {};

// The first allocations of each call, and then ever fewer. Arguments are made by the caller, before anything of graft's
// runs.
TEST_P(ForeignExceptions, DoNotLeave) {
  const std::string type = GetParam();
  World world;
  world.fill_kv();
  long faults = 0, boundaries_with_faults = 0;
  std::string none;
  for (const Boundary& boundary : boundaries(world)) {
    boundary.prepare();
    boundary.call();
    bool any = false;
    long arguments = 0;  // allocations for those of the call
    for (long n = 1;; n += n < 12 ? 1 : n / 4) {
      const std::string where = str(boundary.name, ", ", type, " by allocation ", n);
      std::string failed;
      boundary.prepare();
      graft_faults_arm("new", n, type.c_str(), 0);
      long calls = 0;
      try {
        boundary.call();
        calls = graft_faults_disarm();
      } catch (const Error& error) {
        calls = graft_faults_disarm();
        const bool memory = dynamic_cast<const OutOfMemory*>(&error) != nullptr;
        if (type == "bad_alloc") {
          EXPECT_TRUE(memory || dynamic_cast<const ExecutionError*>(&error) != nullptr)
              << where << ": " << error.what();
        } else {
          EXPECT_FALSE(memory) << where << ": " << error.what();
        }
        EXPECT_STRNE(error.what(), "") << where;
      } catch (const std::exception& error) {
        calls = graft_faults_disarm();
        failed = error.what();
      } catch (...) {
        calls = graft_faults_disarm();
        failed = "no std::exception";
      }
      const long most_arguments = kPlainArguments.contains(boundary.name) ? 0 : kMostArguments;
      if (!failed.empty() && n == arguments + 1 && n <= most_arguments) {
        ++arguments;
        failed.clear();
      }
      EXPECT_EQ(failed, "") << where << " left graft";
      if (calls < n) break;
      any = true;
      ++faults;
      boundary.prepare();
      EXPECT_NO_THROW(boundary.call()) << where << ": the object is not usable after";
      if (!failed.empty()) break;
    }
    boundaries_with_faults += any;
    if (!any) none += " " + boundary.name;
  }
  std::printf("FAULTS public functions | new_%s | %ld | %ld\n", type.c_str(), faults, faults);
  EXPECT_GT(boundaries_with_faults, 70) << "without allocations:" << none;
}

INSTANTIATE_TEST_SUITE_P(Types, ForeignExceptions,
                         ::testing::Values("bad_alloc", "length_error", "out_of_range", "system_error", "logic_error",
                                           "json", "number"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace graft::faults
