#include "log/keys.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "log/histories.h"
#include "log/limits.h"
#include "store/key.h"

namespace weightwire {
namespace {

using testing::AnyHash;
using testing::AnyId;
using testing::AnyNumber;
using testing::ExpectError;
using testing::Succeeds;

constexpr const char* kId = "000102030405060708090a0b0c0d0e0f";

TEST(Keys, MatchTheSpecification) {
  const Id id = *IdFromHex(kId);
  const Sha256Digest hash = Sha256Of("");
  EXPECT_EQ(RecordKey(42), "versions/00000000000000000042.json");
  EXPECT_EQ(RecordKey(kMaxVersion), "versions/09223372036854775807.json");
  EXPECT_EQ(DeltaFolder(41, 42), "deltas/00000000000000000041-00000000000000000042/");
  EXPECT_EQ(PartKey(41, 42, hash),
            "deltas/00000000000000000041-00000000000000000042/"
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.safetensors");
  EXPECT_EQ(LayoutKey(hash), "layouts/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.json");
  EXPECT_EQ(AnchorFolder({7, id}), "anchors/00000000000000000007/000102030405060708090a0b0c0d0e0f/");
  EXPECT_EQ(AnchorManifestKey({7, id}), "anchors/00000000000000000007/000102030405060708090a0b0c0d0e0f/anchor.json");
  EXPECT_EQ(LeaseKey(id), "leases/000102030405060708090a0b0c0d0e0f.json");
  EXPECT_EQ(MarkKey(id), "gc/000102030405060708090a0b0c0d0e0f.json");
}

RC_GTEST_PROP(KeysProperty, AreValidInOrderAndReadBack, (std::uint64_t seed)) {
  SeededRandom random(seed);
  const Version to = 1 + AnyNumber(random, kMaxVersion);
  const Version from = AnyNumber(random, to);
  const std::string part = PartKey(from, to, AnyHash(random));
  RC_ASSERT(CheckKey(part).ok());
  const auto delta = DeltaOfKey(part);
  RC_ASSERT(delta.has_value() && delta->from == from && delta->to == to);
  RC_ASSERT(!AnchorOfKey(part).has_value());

  const AnchorName anchor{to, AnyId(random)};
  RC_ASSERT(CheckKey(AnchorManifestKey(anchor)).ok());
  RC_ASSERT(AnchorOfKey(AnchorManifestKey(anchor)) == anchor);
  RC_ASSERT(AnchorOfKey(AnchorFolder(anchor)) == anchor);
  RC_ASSERT(IsAnchorManifestKey(AnchorManifestKey(anchor)));
  RC_ASSERT(!IsAnchorManifestKey(AnchorFolder(anchor) + "model.safetensors"));
  RC_ASSERT(!DeltaOfKey(AnchorManifestKey(anchor)).has_value());

  // The order of keys is that of versions, which lists depend on.
  RC_ASSERT(RecordKey(from) < RecordKey(to));
  RC_ASSERT(AnchorFolder({from, AnyId(random)}) < AnchorFolder({to, AnyId(random)}));
}

TEST(Keys, RefusesKeysOutsideTheSpecification) {
  const std::string folder = "deltas/00000000000000000041-00000000000000000042/";
  EXPECT_TRUE(DeltaOfKey(folder).has_value());
  EXPECT_TRUE(DeltaOfKey(folder + "x").has_value());
  for (const char* key : {"", "deltas/", "deltas/x", "deltas/41-42/x",
                          "deltas/00000000000000000041-00000000000000000042",    // no slash
                          "deltas/00000000000000000041_00000000000000000042/x",  //
                          "deltas/00000000000000000042-00000000000000000042/x",  // leads nowhere
                          "deltas/00000000000000000043-00000000000000000042/x",  // backwards
                          "deltas/0000000000000000004a-00000000000000000042/x",  //
                          "deltas/00000000000000000041-09223372036854775808/x",  // above the last version
                          "deltas/00000000000000000041-99999999999999999999/x",  // above 2^64
                          "Deltas/00000000000000000041-00000000000000000042/x",  //
                          "/deltas/00000000000000000041-00000000000000000042/x"}) {
    EXPECT_FALSE(DeltaOfKey(key).has_value()) << key;
  }
  for (const char* key : {"", "anchors/", "anchors/00000000000000000007", "anchors/00000000000000000007/",
                          "anchors/00000000000000000007/000102030405060708090a0b0c0d0e0f",
                          "anchors/7/000102030405060708090a0b0c0d0e0f/anchor.json",
                          "anchors/00000000000000000007/000102030405060708090A0B0C0D0E0F/anchor.json",
                          "anchors/00000000000000000007/0001/anchor.json",
                          "anchors/09223372036854775808/000102030405060708090a0b0c0d0e0f/anchor.json"}) {
    EXPECT_FALSE(AnchorOfKey(key).has_value()) << key;
    EXPECT_FALSE(IsAnchorManifestKey(key)) << key;
  }
  EXPECT_FALSE(IsAnchorManifestKey("anchors/00000000000000000007/000102030405060708090a0b0c0d0e0f/sub/anchor.json"));
}

TEST(FileNames, AcceptsOnlyNamesThatMayBecomePaths) {
  for (const char* name : {"model.safetensors", "config.json", "model-00001-of-00002.safetensors", "a/b/c.json",
                           "A_-.x", "a/anchor.json", "x..y"}) {
    EXPECT_TRUE(Succeeds(CheckFileName(name))) << name;
  }
  for (const char* name : {"",
                           "/etc/passwd",
                           "../x",
                           "a/../b",
                           "a/..",
                           "..",
                           ".",
                           "./a",
                           "a/./b",
                           "a//b",
                           "a/",
                           ".hidden",
                           "a/.git/config",
                           ".weightwire/journal",
                           "a\\b",
                           "a b",
                           "C:x",
                           "caf\xc3\xa9",
                           "a\nb",
                           "anchor.json"}) {
    ExpectError(CheckFileName(name), ErrorCode::kCorrupt, "cannot be a file of an anchor");
  }
  EXPECT_FALSE(CheckFileName(std::string_view("a\0b", 3)).ok());
  EXPECT_FALSE(CheckFileName(std::string(kMaxKeySegmentBytes + 1, 'a')).ok());
}

TEST(FileNames, DetectsFilesThatMayBeCode) {
  for (const char* name :
       {"modeling.py", "MODELING.PY", "a/b.pyc", "pytorch_model.bin", "x.pkl", "x.Pickle", "x.pt", "x.pth", "x.ckpt",
        "lib.so", "lib.so.1", "x.npy", "run.sh", "a.pkl.gz", "a.PY.json", "x.tar.py.zst", "a.egg/b.txt", "x.pypy.py"}) {
    EXPECT_TRUE(MayBeCode(name)) << name;
  }
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.model", "py", "so", "x.sox", "x.pyx.json",
                           "bin/x", "a.binary.txt", "x-py.gz"}) {
    EXPECT_FALSE(MayBeCode(name)) << name;
  }
}

}  // namespace
}  // namespace weightwire
