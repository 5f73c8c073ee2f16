#include "store/probe.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace weightwire {

Result<bool> HonoursPutIfAbsent(Store& store, Random& random) {
  const std::string key = std::string(kProbesPrefix) + random.Hex128();
  // Different bytes, so that nothing can take the second for a repetition of the first.
  const std::vector<std::uint8_t> first = {'1'};
  const std::vector<std::uint8_t> second = {'2'};
  const auto created = store.PutIfAbsent(key, first);
  if (!created.ok() && created.error().code() == ErrorCode::kUnsupported) return false;
  if (!created.ok()) return created.error();
  const auto again = store.PutIfAbsent(key, second);
  const Status removed = store.Remove(key);
  if (!again.ok()) return again.error();
  if (!removed.ok()) return removed.error();
  if (created.value() == PutOutcome::kExists) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("{} says that a new object with a random name exists already; it cannot be trusted with a run",
                    store.Name()));
  }
  return again.value() == PutOutcome::kExists;
}

}  // namespace weightwire
