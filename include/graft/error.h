#pragma once

#include <stdexcept>
#include <string>

#include "graft/export.h"

namespace graft {

// What functions of graft throw; nothing else leaves them but what a callback of the caller threw, unchanged. The
// message names the thing, what was expected and what was found.
class GRAFT_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A call that breaks the contract: wrong dtype, rank, size, count, option or state of the session.
class GRAFT_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file or blob that is not a valid graft program or package.
class GRAFT_API InvalidProgram : public Error {
 public:
  using Error::Error;
};

// Valid, but this build or device cannot do it.
class GRAFT_API Unsupported : public Error {
 public:
  using Error::Error;
};

// A file, weight, method or device that is not there.
class GRAFT_API NotFound : public Error {
 public:
  using Error::Error;
};

// The operating system refused: memory, descriptors, a file that cannot be read.
class GRAFT_API SystemError : public Error {
 public:
  using Error::Error;
};

// There is not enough memory.
class GRAFT_API OutOfMemory : public SystemError {
 public:
  using SystemError::SystemError;
};

// A process or host that does a part of the work cannot be reached, or is gone: the same call may succeed once it is
// back.
class GRAFT_API Unavailable : public Error {
 public:
  using Error::Error;
};

// In use by somebody else, or full, at this moment: the same call may succeed later.
class GRAFT_API Busy : public Error {
 public:
  using Error::Error;
};

// A kernel met data it must not act on, such as an index out of range. The session stays usable.
class GRAFT_API ExecutionError : public Error {
 public:
  using Error::Error;
};

// The run was cancelled or its deadline passed. The session stays usable.
class GRAFT_API Cancelled : public Error {
 public:
  using Error::Error;
};

// A bug in graft: a failed check of its own, or an exception of a library that it uses, which is nested in this one
// (std::rethrow_if_nested). The object that was called stays usable. Please report it.
class GRAFT_API InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace graft
