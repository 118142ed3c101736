#include <iostream>

#include "cli/commands.h"
#include "cli/text.h"

namespace graft::cli {

void pack_weights(const PackArgs& args) {
  const PackedInfo info = pack(args.file, args.output, load_options_of(args));
  if (info.entries == 0) {
    std::cout << printable(args.file) << ": loads make nothing of its weights, so no file was written\n";
  } else {
    std::cout << printable(info.path) << ": " << bytes_text(info.bytes) << ", " << info.entries
              << (info.entries == 1 ? " entry\n" : " entries\n");
  }
}

}  // namespace graft::cli
