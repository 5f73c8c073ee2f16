#include "store/backends/directory_walk.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "store/key.h"

namespace weightwire {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

bool Vanished(int error) { return error == ENOENT || error == ENOTDIR; }

// Whether some key below `folder` (which ends in "/") can be wanted.
bool MayHold(std::string_view folder, std::string_view prefix, std::string_view start_after) {
  const std::size_t common = std::min(folder.size(), prefix.size());
  if (folder.substr(0, common) != prefix.substr(0, common)) return false;
  // All keys below come before any key that is greater than the folder's name and does not start with it.
  return folder > start_after || start_after.starts_with(folder);
}

class Walk {
 public:
  Walk(const std::filesystem::path& root, std::string_view prefix, std::string_view start_after,
       const std::function<bool(const std::string&)>& visit)
      : root_(root), prefix_(prefix), start_after_(start_after), visit_(visit) {}

  // `folder` is empty or ends in "/". False in `*go_on` ends the whole walk.
  int Folder(const std::string& folder, bool* go_on) {
    std::vector<std::string> names;
    if (const int error = Names(folder, &names); error != 0) return Vanished(error) ? 0 : error;
    for (const std::string& name : names) {
      const std::string key = folder + name;
      int error = 0;
      if (key.ends_with('/')) {
        error = Folder(key, go_on);
      } else {
        *go_on = visit_(key);
      }
      if (error != 0 || !*go_on) return error;
    }
    return 0;
  }

 private:
  // The wanted entries, folders with a "/" behind, sorted: this way the order is that of the whole keys.
  int Names(const std::string& folder, std::vector<std::string>* names) {
    const std::unique_ptr<DIR, CloseDirectory> directory(::opendir((root_ / folder).c_str()));
    if (directory == nullptr) return errno;
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) break;
      std::string name = entry->d_name;
      std::string key = folder + name;
      if (!CheckKey(key).ok()) continue;
      unsigned char type = entry->d_type;
      if (type == DT_UNKNOWN) {
        struct stat status {};
        if (::lstat((root_ / key).c_str(), &status) != 0) continue;
        type = S_ISDIR(status.st_mode) ? DT_DIR : S_ISREG(status.st_mode) ? DT_REG : DT_UNKNOWN;
      }
      if (type == DT_DIR && MayHold(key += '/', prefix_, start_after_)) names->push_back(name + '/');
      if (type == DT_REG && key.starts_with(prefix_) && key > start_after_) names->push_back(name);
    }
    if (errno != 0) return errno;
    std::sort(names->begin(), names->end());
    return 0;
  }

  const std::filesystem::path& root_;
  const std::string_view prefix_;
  const std::string_view start_after_;
  const std::function<bool(const std::string&)>& visit_;
};

}  // namespace

int WalkKeys(const std::filesystem::path& root, std::string_view prefix, std::string_view start_after,
             const std::function<bool(const std::string& key)>& visit) {
  bool go_on = true;
  // Starting in the deepest folder that holds them all spares reading the others.
  const std::size_t slash = prefix.rfind('/');
  const std::string folder(slash == std::string_view::npos ? "" : prefix.substr(0, slash + 1));
  return Walk(root, prefix, start_after, visit).Folder(folder, &go_on);
}

}  // namespace weightwire
