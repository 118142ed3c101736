#pragma once

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace graft::faults {

// Of the public headers, without those that only return a member, cannot fail or are called by graft.
inline const std::set<std::string> kCannotFail = {"Adapter",
                                                  "Adapter::bytes",
                                                  "Adapter::id",
                                                  "Adapter::layers",
                                                  "Adapter::rank",
                                                  "Adapters",
                                                  "Adapters::has",
                                                  "Arena::bytes",
                                                  "Audio::seconds",
                                                  "ImageProcessor::labels",
                                                  "ImageProcessor::processing",
                                                  "ImageProcessor::size_of",
                                                  "Transcriber::info",
                                                  "Transcriber::session",
                                                  "Speaker::defaults",
                                                  "Speaker::info",
                                                  "Speaker::session",
                                                  "CancelToken::cancel",
                                                  "CancelToken::reset",
                                                  "CancelToken::cancelled",
                                                  "CancelToken::flag",
                                                  "Session::counters",
                                                  "Session::threads",
                                                  "Session::program",
                                                  "version",
                                                  "Value::of",
                                                  "Decoder::capacity",
                                                  "Decoder::options",
                                                  "Decoder::model",
                                                  "Decoder::session",
                                                  "TextGenerator::stats",
                                                  "TextGenerator::decoder",
                                                  "BatchGenerator::waiting",
                                                  "BatchGenerator::running",
                                                  "BatchGenerator::stats",
                                                  "BatchGenerator::decoder",
                                                  "LanguageModel::info",
                                                  "LanguageModel::program",
                                                  "LanguageModel::has_tokenizer",
                                                  "TextEncoder::size",
                                                  "Tokenizer::size",
                                                  "Tokenizer::is_special",
                                                  "Tokenizer::special_ids",
                                                  "Tokenizer::truncation",
                                                  "Tokenizer",
                                                  "Grammar",
                                                  "GrammarVocabulary",
                                                  "GrammarVocabulary::trie",
                                                  "Tokenizer::chat_template",
                                                  "Tokenizer::template_variables",
                                                  "Shape::rank",
                                                  "Shape::sizes",
                                                  "TensorDesc::rank",
                                                  "TensorDesc::numel",
                                                  "TensorDesc::contiguous",
                                                  "name",
                                                  "byte_size",
                                                  "is_float",
                                                  "is_integer"};

// Classes that callbacks get, or that graft throws.
inline const std::set<std::string> kOfGraft = {"OpNode", "OpCall", "FlowCall", "Error"};

// The functions that the public headers declare, as Class::name.
inline std::set<std::string> declared() {
  std::set<std::string> out;
  const std::regex class_line(R"(^(?:class|struct) (?:GRAFT_API )?(\w+)(?: final)?[^;]*\{$)"), call(R"((~|\b)(\w+)\()");
  for (const auto& header : std::filesystem::directory_iterator(GRAFT_SOURCE_DIR "/include/graft")) {
    std::ifstream file(header.path());
    std::string type;
    bool is_public = true;
    for (std::string line; std::getline(file, line);) {
      std::smatch found;
      if (std::regex_search(line, found, class_line)) {
        type = found[1];
        is_public = true;
      } else if (line.starts_with("}")) {
        type.clear();
      } else if (line.starts_with(" private:") || line.starts_with(" protected:")) {
        is_public = false;
      } else {
        const bool member = !type.empty() && is_public && line.starts_with("  ") && line[2] != ' ';
        const bool function = type.empty() && line.find("GRAFT_API") != std::string::npos;
        line = line.substr(0, line.find("//"));
        if ((!member && !function) || line.find("operator") != std::string::npos ||
            line.find("using ") != std::string::npos || line.find("std::function<") < line.find('(') ||
            line.find("= default") != std::string::npos || line.find("&&) noexcept") != std::string::npos)
          continue;
        if (!std::regex_search(line, found, call) || found[1] == "~" || found[2] == "__attribute__") continue;
        if (kOfGraft.contains(type)) continue;
        const std::string name = found[2];
        out.insert(type.empty() ? name : name == type ? type : type + "::" + name);
      }
    }
  }
  return out;
}

}  // namespace graft::faults
