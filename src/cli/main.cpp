// The command line. Exit codes: 0 done, 1 an error of the file, the data or the system, 2 wrong use. Every error is one
// line on stderr that begins with "graft: ".
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "cli/batch_command.h"
#include "cli/commands.h"
#include "cli/llm_commands.h"
#include "cli/serve.h"
#include "cli/stage.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

constexpr const char* kAbout = R"(Runs torch.export programs (.pte files of graft.export) on ggml.)";

constexpr const char* kExamples = R"(Examples:
  graft run model.pte --input input_ids=ids.npy --input attention_mask=mask.npy --outputs out.npz
  graft inspect model.pte --shape input_ids=1,7 --shape attention_mask=1,7
  graft generate llm.pte --prompt "Once upon a time" --max-new-tokens 100
  graft batch minilm.pte rows.jsonl -o vectors --task embed
  graft devices
  graft tokenize tokenizer.json "Hello, world!"
  graft export Qwen/Qwen3-0.6B -o qwen3.pte

`graft COMMAND --help` says more. GRAFT_LOG=info shows what graft and ggml log.)";

constexpr const char* kRunNotes = R"(Examples:
  graft run model.pte --input input_ids=ids.npy --input 1=mask.npy --outputs out.npz
  graft run model.pte --inputs in.npz --output-dir out --repeat 20 --profile
  graft run model.pte --input x=x.npy --input steps=7 --threads 4 --timeout 2.5
  graft run model.pte --inputs in.npz --check-finite --dump all tensors

NumPy and graft types: float16/32/64, int8/16/32/64, uint8 and bool are the same on both sides. NumPy has no
bfloat16: bf16 tensors are read from and written as uint16 arrays of their bits. Nothing else is converted.
Arrays in Fortran order or big-endian are read correctly.
Outputs are those of the first call. --repeat, --profile and --trace call again with the same inputs; a program with
state (a cache) moves on with each call.)";

constexpr const char* kCompareNotes = R"(Example:
  graft compare model.pte model-q8_0.pte --inputs in.npz --tolerance 0.02

Compares the outputs of launches whose nodes have the same name and size in both programs; of nodes that were fused the
last has the name. Exit code 1 when one differs by more than the tolerance.)";

constexpr const char* kInspectNotes = R"(Examples:
  graft inspect model.pte
  graft inspect model.pte --shape input_ids=1,7 --shape attention_mask=1,7
  graft inspect model.pte --json | python3 -m json.tool
  graft inspect model.pte --weights model.safetensors --phases

A plan is what runs for given input sizes. It is shown when all sizes are fixed or given with --shape.)";

constexpr const char* kPackNotes = R"(Examples:
  graft pack model.pte
  graft pack model.pte --weights model.safetensors --output model-avx2.packed

Writes what loads make of the weights for this CPU: packed weights and folded constants. Loads map the file that lies
beside the package as model.pte.packed, so that all processes of a machine share it. Pack again after a change of the
package, of its weights, or of graft; until then loads make their own.)";

constexpr const char* kTokenizeNotes = R"(Examples:
  graft tokenize tokenizer.json "Hello, world!"
  graft tokenize model.gguf --pieces < prompt.txt
  graft tokenize model-folder --decode "9707 11 1879 0"

In input that is not UTF-8, ill-formed bytes are read as U+FFFD.)";

void add_program_options(CLI::App& command, ProgramArgs& args) {
  add_load_options(command, args, "the program: a .pte file");
  command.add_option("--method", args.method, "which method (default: the only one, or forward)")->type_name("NAME");
}

void add_zip_ratio(CLI::App& command, ProgramArgs& args) {
  command
      .add_option("--max-zip-ratio", args.max_zip_ratio,
                  "how many times the size of the .npz file its arrays may take, beyond 64 MiB")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->capture_default_str()
      ->group(kLimitGroup)
      ->type_name("X");
}

int wrong_use(const std::string& message, const std::string& command) {
  std::cerr << "graft: " << printable(message) << " (see: " << command << " --help)\n";
  return kWrongUse;
}

int failed(const std::string& message) {
  std::cout.flush();
  std::cerr << "graft: " << printable(message) << "\n";
  return kFailed;
}

int dispatch(int argc, char** argv) {
  CLI::App app(kAbout, "graft");
  app.footer(kExamples);
  app.set_version_flag("--version", version_text)->description("Print version, commit and instruction sets, and exit");
  app.require_subcommand(1);

  RunArgs run_args;
  CLI::App* run_command = app.add_subcommand("run", "Run a method on .npy or .npz inputs.");
  run_command->footer(kRunNotes);
  add_program_options(*run_command, run_args.program);
  run_command
      ->add_option("--input", run_args.inputs, "NAME_OR_INDEX=FILE.npy, for a number NAME_OR_INDEX=7; repeat for more")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  run_command
      ->add_option("--inputs", run_args.inputs_npz, "a .npz file with inputs by name, by index, or arr_0, arr_1 ...")
      ->type_name("FILE.npz");
  add_zip_ratio(*run_command, run_args.program);
  run_command->add_option("--seed", run_args.seed, "seed of the random numbers that the program draws (default: 0)")
      ->type_name("N");
  CLI::Option* folder =
      run_command->add_option("--output-dir", run_args.output_dir, "folder for one .npy file per output")
          ->type_name("FOLDER");
  run_command->add_option("--outputs", run_args.outputs_npz, "a .npz file for all outputs")
      ->excludes(folder)
      ->type_name("FILE.npz");
  run_command
      ->add_option("--repeat", run_args.repeat, "call this many times more; print times, peak memory and counters")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}).description("at least 1"));
  run_command
      ->add_option(
          "--bucket", run_args.buckets,
          "NAME=64,128,256 pads a dimension up to the next of these sizes: NAME as `graft inspect` shows it, or "
          "INPUT.DIMENSION; repeat for more")
      ->type_name("NAME=SIZES")
      ->allow_extra_args(false);
  run_command->add_flag("--profile", run_args.profile, "call once more, timed by kernel and node");
  run_command
      ->add_option("--trace", run_args.trace, "call once more, timed by node; write a trace for Perfetto or Chrome")
      ->type_name("FILE.json");
  run_command
      ->add_flag("--check-finite{finite}", run_args.check,
                 "stop at the first node that makes NaN or infinity of finite inputs; =nan: NaN only")
      ->check(CLI::IsMember(std::vector<std::string>{"finite", "nan"}).description(""));
  run_command->add_option("--dump", run_args.dump, "write what a node, or all nodes, computed as .npy files")
      ->expected(2)
      ->type_name("NODE|all FOLDER");
  run_command->add_option("--timeout", run_args.timeout_s, "seconds that each call may take")
      ->check(CLI::Validator(CLI::PositiveNumber).description("above 0"))
      ->type_name("S");

  CompareArgs compare_args;
  CLI::App* compare_command =
      app.add_subcommand("compare", "Find the first node at which two packages compute something else.");
  compare_command->footer(kCompareNotes);
  add_program_options(*compare_command, compare_args.program);
  compare_command->add_option("OTHER", compare_args.other, "the other program: a .pte file")->required()->type_name("");
  compare_command
      ->add_option("--input", compare_args.inputs,
                   "NAME_OR_INDEX=FILE.npy, for a number NAME_OR_INDEX=7; repeat for more")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  compare_command
      ->add_option("--inputs", compare_args.inputs_npz,
                   "a .npz file with inputs by name, by index, or arr_0, arr_1 ...")
      ->type_name("FILE.npz");
  add_zip_ratio(*compare_command, compare_args.program);
  compare_command
      ->add_option("--tolerance", compare_args.tolerance, "largest difference, as a part of a tensor's largest value")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->capture_default_str()
      ->type_name("X");

  InspectArgs inspect_args;
  CLI::App* inspect_command = app.add_subcommand("inspect", "Show methods, inputs, operators, weights and plans.");
  inspect_command->footer(kInspectNotes);
  add_program_options(*inspect_command, inspect_args.program);
  inspect_command
      ->add_option("--shape", inspect_args.shapes, "NAME_OR_INDEX=1,7 makes the plan for it; repeat for more inputs")
      ->type_name("NAME=SIZES")
      ->allow_extra_args(false);
  inspect_command->add_flag("--json", inspect_args.json, "print JSON");
  inspect_command->add_flag("--plan", inspect_args.plan,
                            "List memory by allocation id and every launch with its tensors");
  inspect_command
      ->add_option("--html", inspect_args.html, "write a page with diagrams of the plans: memory, nodes and graph")
      ->type_name("FILE.html");
  inspect_command->add_flag(
      "--phases", inspect_args.phases,
      "print what each phase of loading and planning took, and memory before and after shrinking");
  inspect_command->add_flag("--passes", inspect_args.passes,
                            "print what each pass over graphs and launches did, or what kept it out");

  PackArgs pack_args;
  CLI::App* pack_command = app.add_subcommand("pack", "Write packed weights to a file that processes share.");
  pack_command->footer(kPackNotes);
  add_load_options(*pack_command, pack_args, "the program: a .pte file");
  pack_command->add_option("--output", pack_args.output, "where to write it (default: FILE.packed)")
      ->type_name("FILE.packed");

  CLI::App* devices_command = app.add_subcommand("devices", "List the devices of this build and machine.");
  devices_command->footer("Example:\n  graft devices");

  CLI::App* doctor_command = app.add_subcommand("doctor", "Show what graft finds on this machine, in about a second.");
  doctor_command->footer("Example:\n  graft doctor");

  TokenizeArgs tokenize_args;
  CLI::App* tokenize_command = app.add_subcommand("tokenize", "Turn text into token ids, and back.");
  tokenize_command->footer(kTokenizeNotes);
  tokenize_command
      ->add_option("FILE", tokenize_args.file,
                   "a tokenizer: tokenizer.json, a folder with one, a .gguf file, or a .pte file that carries one")
      ->required()
      ->type_name("");
  tokenize_command->add_option("TEXT", tokenize_args.text, "the text (default: standard input)")->type_name("");
  tokenize_command->add_flag("--decode", tokenize_args.decode, "TEXT is ids, with spaces or commas between");
  tokenize_command->add_flag("--pieces", tokenize_args.pieces, "one line per token: id, piece, text");
  tokenize_command->add_flag("--no-special", tokenize_args.no_special,
                             "without BOS and the other special tokens around a text");
  tokenize_command->add_flag("--skip-special", tokenize_args.skip_special, "with --decode: leave special tokens out");

  add_text_limits(*tokenize_command, tokenize_args.limits);

  LlmCommands llm_commands(app);
  ServeCommand serve_command(app);
  StageCommand stage_command(app);
  BatchCommand batch_command(app);
  int code = 0;

  app.add_subcommand("export", "Make a package of a language model of Hugging Face or a GGUF file (Python).");
  if (argc > 1 && std::string_view(argv[1]) == "export")  // its options are those of the Python program
    export_model({argv + 2, static_cast<std::size_t>(argc - 2)});

  try {
    app.parse(argc, argv);
    code = llm_commands.run().value_or(0);
    serve_command.run();
    stage_command.run();
    if (const int batch_code = batch_command.run(); batch_code != 0) code = batch_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const auto chosen = app.get_subcommands();
    return wrong_use(error.what(), chosen.empty() ? "graft" : "graft " + chosen[0]->get_name());
  }
  if (run_command->parsed()) run(run_args);
  if (compare_command->parsed() && !compare(compare_args)) code = kFailed;
  if (inspect_command->parsed()) inspect(inspect_args);
  if (pack_command->parsed()) pack_weights(pack_args);
  if (devices_command->parsed()) list_devices();
  if (doctor_command->parsed()) doctor();
  if (tokenize_command->parsed()) tokenize(tokenize_args);
  std::cout.flush();
  return std::cout ? code : failed("cannot write to stdout");
}

}  // namespace
}  // namespace graft::cli

int main(int argc, char** argv) {
  using graft::cli::failed;
  try {
    return graft::cli::dispatch(argc, argv);
  } catch (const graft::Error& error) {
    return failed(error.what());
  } catch (const std::bad_alloc&) {
    return failed("not enough memory");
  } catch (const std::exception& error) {
    return failed(graft::cli::str("internal error, please report it: ", error.what()));
  } catch (...) {
    return failed("internal error, please report it: an exception of unknown type");
  }
}
