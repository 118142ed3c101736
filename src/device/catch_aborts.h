#pragma once

namespace graft {

// While one lives, what would end the process in ggml on this thread (an assertion, an error of CUDA) throws
// std::runtime_error with ggml's message instead. What ggml was doing is left as it is: the device that it happened to
// is not to be used again. Not in a noexcept function. A thread of ggml's own, as its RPC client has one, still ends
// the process.
class CatchAborts {
 public:
  CatchAborts();
  ~CatchAborts();
  CatchAborts(const CatchAborts&) = delete;
  CatchAborts& operator=(const CatchAborts&) = delete;
};

}  // namespace graft
