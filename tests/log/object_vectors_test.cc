// The objects in spec/vectors/objects: what is read, what is refused and as what, and the bytes that are written.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "log/anchor.h"
#include "log/histories.h"
#include "log/lease.h"
#include "log/mark.h"
#include "log/record.h"
#include "log/run_manifest.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

// Parses an object and prints it again.
using Reader = std::function<Result<std::string>(std::string_view)>;

template <typename Parse>
Reader ReaderOf(Parse parse) {
  return [parse](std::string_view text) -> Result<std::string> {
    WW_TRY(const auto object, parse(text));
    return ToJson(object);
  };
}

// By the kind of the object, with which the names of files begin.
const std::map<std::string, Reader>& Readers() {
  static const std::map<std::string, Reader> readers = {{"run", ReaderOf(ParseRunManifest)},
                                                        {"record", ReaderOf(ParseRecord)},
                                                        {"anchor", ReaderOf(ParseAnchorManifest)},
                                                        {"lease", ReaderOf(ParseLease)},
                                                        {"mark", ReaderOf(ParseMark)}};
  return readers;
}

// Calls `check` with the name of each file of the folder, its text, and what reading it gives.
template <typename Check>
void ForEachIn(const std::string& folder, std::size_t at_least, const Check& check) {
  std::size_t count = 0;
  const auto path = std::filesystem::path(WEIGHTWIRE_SOURCE_DIR) / "spec/vectors/objects" / folder;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().stem();
    SCOPED_TRACE(name);
    const std::string text = ReadAll(entry.path());
    check(text, Readers().at(name.substr(0, name.find('_')))(text));
    ++count;
  }
  EXPECT_GE(count, at_least);
}

TEST(ObjectVectors, WrittenObjectsAreWrittenWithTheSameBytes) {
  ForEachIn("written", 10, [](const std::string& text, const Result<std::string>& printed) {
    ASSERT_TRUE(Succeeds(printed));
    EXPECT_EQ(printed.value(), text);
  });
}

TEST(ObjectVectors, GoodObjectsAreRead) {
  ForEachIn("good", 10, [](const std::string&, const Result<std::string>& printed) { EXPECT_TRUE(Succeeds(printed)); });
}

TEST(ObjectVectors, BadObjectsAreDamaged) {
  ForEachIn("bad", 100,
            [](const std::string&, const Result<std::string>& printed) { ExpectError(printed, ErrorCode::kCorrupt); });
}

TEST(ObjectVectors, ObjectsOfLaterVersionsAreUnsupported) {
  ForEachIn("unsupported", 4, [](const std::string&, const Result<std::string>& printed) {
    ExpectError(printed, ErrorCode::kUnsupported, "update weightwire");
  });
}

}  // namespace
}  // namespace weightwire
