#include <iostream>

#include "cli/commands.h"
#include "cli/text.h"

namespace graft::cli {

void list_devices() {
  Table table({{"device"}, {"memory", Table::Align::right}, {"free", Table::Align::right}, {"description"}});
  for (const DeviceInfo& device : devices())
    table.add({device.name, bytes_text(device.memory_total), bytes_text(device.memory_free), device.description});
  std::cout << table.text();
}

}  // namespace graft::cli
