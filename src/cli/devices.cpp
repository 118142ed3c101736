#include <iostream>
#include <string>

#include "cli/commands.h"
#include "cli/text.h"

namespace graft::cli {

void list_devices() {
  Table table(
      {{"device"}, {"memory", Table::Align::right}, {"free", Table::Align::right}, {"description"}, {"features"}});
  for (const DeviceInfo& device : devices()) {
    std::string features;
    for (const std::string& feature : device.features) features += (features.empty() ? "" : ", ") + feature;
    table.add(
        {device.name, bytes_text(device.memory_total), bytes_text(device.memory_free), device.description, features});
  }
  std::cout << table.text();
}

}  // namespace graft::cli
