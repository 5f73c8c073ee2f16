#include "follow/in_place/journal_replay.h"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace weightwire {

Status ReplayJournal(FileSystem& files, const FileSystem::Path& directory, const Journal& journal,
                     Journal::Direction direction, ThreadPool& pool) {
  std::vector<std::unique_ptr<UpdateMap>> maps;
  for (std::size_t i = 0; i < journal.files().size(); ++i) {
    const FileSystem::Path path = directory / journal.files()[i].name;
    WW_TRY(std::unique_ptr<UpdateMap> map, files.MapForUpdate(path));
    WW_TRY(const std::unique_ptr<FileMap> current, files.Map(path));
    WW_RETURN_IF_ERROR(journal.CheckFile(i, current->bytes(), pool));
    maps.push_back(std::move(map));
  }
  for (std::size_t i = 0; i < maps.size(); ++i) {
    WW_TRY(const std::span<std::uint8_t> bytes, maps[i]->ForWriting(0, maps[i]->size_bytes()));
    journal.Write(i, bytes, direction, pool);
  }
  for (const std::unique_ptr<UpdateMap>& map : maps) WW_RETURN_IF_ERROR(map->Sync());
  return Ok();
}

}  // namespace weightwire
