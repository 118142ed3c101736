#include "text/chat_template.h"
#include "base/check.h"
namespace graft::text {
std::string render_chat_template(std::string_view, std::string_view, std::string_view) { throw Unsupported("chat templates are not rendered yet"); }
}  // namespace graft::text
