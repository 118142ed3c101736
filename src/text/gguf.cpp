#include "base/check.h"
#include "text/pipeline.h"
namespace graft {
std::shared_ptr<const Tokenizer> Tokenizer::from_gguf(const std::string& path) { throw Unsupported("'" + path + "': vocabularies of GGUF files are not read yet"); }
}  // namespace graft
