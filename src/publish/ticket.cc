#include "publish/ticket.h"

namespace weightwire {

std::string_view NameOf(TicketStage stage) {
  constexpr std::array<std::string_view, kTicketStages> kNames = {
      "queued", "spooled", "uploading", "committed", "already_published", "skipped", "failed"};
  return kNames[static_cast<std::size_t>(stage)];
}

}  // namespace weightwire
