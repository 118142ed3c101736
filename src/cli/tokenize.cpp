#include <charconv>
#include <iostream>
#include <iterator>

#include "base/check.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "graft/tokenizer.h"

namespace graft::cli {
namespace {

// "1 2,3": numbers with spaces or commas between.
std::vector<std::int64_t> ids_of(const std::string& text) {
  std::vector<std::int64_t> out;
  for (std::size_t at = 0; (at = text.find_first_not_of(" ,\n\t", at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(" ,\n\t", at), text.size());
    std::int64_t id = 0;
    const auto read = std::from_chars(text.data() + at, text.data() + end, id);
    GRAFT_CHECK(InvalidArgument, read.ec == std::errc() && read.ptr == text.data() + end,
                "token ids should be numbers with spaces or commas between, found '", text.substr(at, end - at), "'");
    out.push_back(id);
    at = end;
  }
  return out;
}

}  // namespace

void tokenize(const TokenizeArgs& args) {
  const auto tokenizer = Tokenizer::load(args.file, args.limits);
  const std::string text = args.text ? *args.text : std::string(std::istreambuf_iterator<char>(std::cin), {});
  if (args.decode) {
    std::cout << tokenizer->decode(ids_of(text), args.skip_special) << "\n";
    return;
  }
  const auto ids = tokenizer->encode(text, {.add_special = !args.no_special, .max_length = 0});
  if (!args.pieces) {
    for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i > 0 ? " " : "") << ids[i];
    std::cout << "\n";
    return;
  }
  Table table({{"id", Table::Align::right}, {"piece"}, {"text"}});
  for (std::int64_t id : ids)
    table.add({std::to_string(id), printable(tokenizer->piece(id)), Json(tokenizer->decode({&id, 1})).dump()});
  std::cout << table.text();
}

}  // namespace graft::cli
