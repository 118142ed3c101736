// A language model from process start to its first token: the cost of a program that starts, answers and ends. usage:
// graft_first_token MODEL.pte TOKENS THREADS CONTEXT [STEPS] TOKENS: a file of int64 token ids, the prompt. Prints the
// id of the first token, after STEPS more greedy ones.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

#include "graft/llm.h"

namespace {

std::vector<std::int64_t> read_tokens(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::int64_t> tokens;
  for (std::int64_t token = 0; file.read(reinterpret_cast<char*>(&token), sizeof(token));) tokens.push_back(token);
  return tokens;
}

std::int64_t best(std::span<const float> logits) { return std::ranges::max_element(logits) - logits.begin(); }

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s MODEL.pte TOKENS THREADS CONTEXT [STEPS]\n", argv[0]);
    return 2;
  }
  graft::DecoderOptions options;
  options.threads = std::atoi(argv[3]);
  options.length = std::atoll(argv[4]);
  options.kv_type = graft::KvType::bf16;
  graft::Decoder decoder(graft::LanguageModel::load(argv[1]), options);
  const std::vector<std::int64_t> prompt = read_tokens(argv[2]);
  const std::span<const std::int64_t> rows[] = {prompt};
  const std::int64_t first = best(decoder.prefill(rows));
  std::int64_t token = first;
  for (int i = argc > 5 ? std::atoi(argv[5]) : 0; i > 0; --i) {
    const std::span<const std::int64_t> step[] = {std::span(&token, 1)};
    token = best(decoder.run(step, 1, 1));
  }
  std::printf("%lld\n", static_cast<long long>(first));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
