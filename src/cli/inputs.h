#pragma once

#include <string>
#include <vector>

#include "graft/graft.h"

// Parses command-line arguments into the inputs of a method, and names its outputs.
namespace graft::cli {

// `name`, or the only method, or "forward". Throws NotFound, InvalidArgument listing the methods.
const MethodInfo& pick_method(const Program& program, const std::string& name);

// `assignments`: "NAME_OR_INDEX=FILE.npy", or "NAME_OR_INDEX=7" for a number. `npz`: a file with more of them, "" for
// none; its arrays are named after inputs, by index, or arr_0, arr_1 ... as numpy.savez names positional ones.
// Every input of the method must be given once. Inputs that were fixed at export take no value.
// Throws InvalidArgument, NotFound, SystemError.
std::vector<Value> read_inputs(const MethodInfo& method, const std::vector<std::string>& assignments,
                               const std::string& npz, double max_zip_ratio);

// Inputs without data, for planning. `shapes`: "NAME_OR_INDEX=1,7", for a number "NAME_OR_INDEX=7". Inputs whose sizes
// the program fixes may be left out.
std::vector<Value> shaped_inputs(const MethodInfo& method, const std::vector<std::string>& shapes);

// True when shaped_inputs(method, {}) succeeds: no input is a number or has an open dimension.
bool all_static(const MethodInfo& method);

// From NAME=64,128,256.
std::vector<Buckets> read_buckets(const std::vector<std::string>& assignments);

// Names for files: the keys of the dict or dataclass that the method returns, else the graph's; made of letters, digits
// and "._-" only, made different where two are equal.
std::vector<std::string> output_names(const MethodInfo& method);

}  // namespace graft::cli
