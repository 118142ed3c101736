// Included ahead of ggml's Vulkan backend.
#pragma once

#include <stdlib.h>  // ahead of the macro, since it names getenv
#include <vulkan/vulkan_core.h>

#include <cstdlib>
#include <cstring>
#include <vector>

// On a device that computes in f16, ggml rounds the operands of f32 products to f16 where there are more than 8 rows:
// to 11 bits, and to infinity from 65,520 on. Not here, unless GRAFT_VULKAN_F16 is set.
inline char* graft_getenv(const char* name) {
  static char disabled[] = "1";
  if (std::strcmp(name, "GGML_VK_DISABLE_F16") == 0 && std::getenv("GRAFT_VULKAN_F16") == nullptr) return disabled;
  return std::getenv(name);
}
#define getenv graft_getenv

// Headers older than VK_EXT_layer_settings (1.3.272; Debian 12 has 1.3.239): the types of that extension which ggml
// fills in, with the layout and the number of its specification.
#if VK_HEADER_VERSION < 272
namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
  const char* pLayerName;
  const char* pSettingName;
  LayerSettingTypeEXT type;
  uint32_t valueCount;
  const void* pValues;
};

struct LayerSettingsCreateInfoEXT {
  explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT>& settings)
      : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}
  int32_t sType = 1000496000;
  const void* pNext = nullptr;
  uint32_t settingCount;
  const LayerSettingEXT* pSettings;
};

}  // namespace vk
#endif
