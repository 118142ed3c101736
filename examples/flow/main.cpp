// Encoder and decoder as a flow: while the decoder has a run, the encoder has the next.
// usage: encode_decode PACKAGE.pte      (methods "encode" and "decode", as export.py writes them)
#include <graft/flow.h>
#include <graft/graft.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>
#include <vector>

namespace {

using Tokens = std::vector<std::int64_t>;

graft::Value tensor(Tokens& tokens) {
  return graft::Value::of(
      graft::TensorView{tokens.data(), graft::DType::i64, {static_cast<std::int64_t>(tokens.size())}});
}

bool same(const graft::Value& a, const graft::Value& b) {
  const std::size_t bytes = graft::TensorDesc(a.tensor.dtype, a.tensor.shape).byte_count();
  return a.tensor.dtype == b.tensor.dtype && a.tensor.shape == b.tensor.shape &&
         std::memcmp(a.tensor.data, b.tensor.data, bytes) == 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const auto program = graft::Program::load(argc > 1 ? argv[1] : "encode_decode.pte");
  graft::SessionOptions one_thread;
  one_thread.threads = 1;
  const auto session = [&] { return std::make_shared<graft::Session>(program, one_thread); };

  graft::FlowGraph graph;
  graph.inputs = {"tokens"};
  graph.stages = {{.name = "encoder", .sessions = {session()}, .method = "encode"},
                  {.name = "decoder", .sessions = {session()}, .method = "decode"}};
  graph.connections = {{"encoder.tokens", "tokens"}, {"decoder.memory", "encoder.0"}};
  graph.outputs = {"decoder.0"};
  graft::Flow flow(std::move(graph));

  std::vector<Tokens> texts;  // the caller's memory: it must stay until the runs are done
  for (std::int64_t n = 1; n <= 40; ++n) {
    Tokens& text = texts.emplace_back();
    for (std::int64_t i = 0; i < n; ++i) text.push_back((7 * i + n) % 100);
  }
  std::vector<std::future<graft::FlowOutputs>> runs;
  for (Tokens& text : texts) runs.push_back(flow.submit({tensor(text)}));

  const auto by_hand = session();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const graft::FlowOutputs outputs = runs[i].get();
    const std::vector<graft::Value> memory = by_hand->run("encode", std::vector{tensor(texts[i])});
    if (!same(outputs[0][0], by_hand->run("decode", memory)[0])) {
      std::cerr << "run " << i << " differs from its stages one after another\n";
      return 1;
    }
    if (i == 4) {
      const auto* logits = static_cast<const float*>(outputs[0][0].tensor.data);
      std::cout << "token " << std::max_element(logits, logits + 100) - logits << " first for 5 tokens\n";
    }
  }
  std::cout << runs.size()
            << " runs, the same as the stages one after another; copies between them: " << flow.counters().copies
            << "\n";
} catch (const graft::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
