// The objects of a run as JSON: golden texts with the keys in the order of spec/PROTOCOL.md, and what is refused.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "log/anchor.h"
#include "log/histories.h"
#include "log/lease.h"
#include "log/limits.h"
#include "log/mark.h"
#include "log/record.h"
#include "log/run_manifest.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

const Id kRun = *IdFromHex("00112233445566778899aabbccddeeff");
const Id kOther = *IdFromHex("0123456789abcdef0123456789abcdef");

Sha256Digest HashOf(char digit) { return *Sha256FromHex(std::string(64, digit)); }

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// --- run.json ---

constexpr std::string_view kRunJson =
    R"({"format":"weightwire-run","format_version":1,"run_id":"00112233445566778899aabbccddeeff",)"
    R"("single_writer":true,"read_features":["pieces"],"write_features":["w","x"]})";

TEST(RunManifest, Golden) {
  RunManifest manifest;
  manifest.run = kRun;
  manifest.single_writer = true;
  manifest.read = {"pieces"};
  manifest.write = {"w", "x"};
  EXPECT_EQ(ToJson(manifest), kRunJson);
  EXPECT_EQ(ParseRunManifest(kRunJson).value(), manifest);
}

TEST(RunManifest, Refusals) {
  const std::string json(kRunJson);
  ExpectError(ParseRunManifest(Replaced(json, "version\":1", "version\":2")), ErrorCode::kUnsupported,
              "version 2, and this weightwire knows only version 1; update weightwire");
  ExpectError(ParseRunManifest(Replaced(json, "version\":1", "version\":0")), ErrorCode::kUnsupported);
  ExpectError(ParseRunManifest(Replaced(json, "version\":1", "version\":\"1\"")), ErrorCode::kCorrupt);
  // A later version may look different in everything else.
  ExpectError(ParseRunManifest(R"({"format":"weightwire-run","format_version":9})"), ErrorCode::kUnsupported);
  ExpectError(ParseRunManifest(R"({"format":"weightwire-run","format_version":1,"read_features":["teleport"]})"),
              ErrorCode::kUnsupported, "\"teleport\", which this version does not know; update weightwire");
  ExpectError(ParseRunManifest(Replaced(json, "true", "1")), ErrorCode::kCorrupt);
  ExpectError(ParseRunManifest(json + std::string(kMaxRunManifestBytes, ' ')), ErrorCode::kLimit);
  std::string many;
  for (std::uint64_t i = 0; i < kMaxFeatures; ++i) many += R"("f",)";
  ExpectError(ParseRunManifest(Replaced(json, R"(["pieces"])", "[" + many + R"("f"])")), ErrorCode::kLimit);
}

TEST(RunManifest, NamesUnknownFeatures) {
  EXPECT_TRUE(Succeeds(CheckFeatures({}, "read it")));
  ExpectError(CheckFeatures({"teleport"}, "read it"), ErrorCode::kUnsupported, "\"teleport\"");
}

// --- records ---

Record ARecord() {
  Record record;
  record.run = kRun;
  record.version = 42;
  record.parent = HashOf('1');
  record.step = 18446744073709551615U;
  record.time = "2026-11-15T08:00:00Z";
  record.writer = kOther;
  record.layout = HashOf('2');
  record.state = HashOf('3');
  record.delta = {{PartKey(41, 42, HashOf('4')), 10, HashOf('4')}, {PartKey(41, 42, HashOf('5')), 20, HashOf('5')}};
  record.changed = 7;
  record.delta_bytes = 1000;
  record.chain = 40;
  record.anchor = AnchorRef{{41, kOther}, 5000, HashOf('6')};
  return record;
}

Record ARebase() {
  Record record = ARecord();
  record.delta = std::nullopt;
  record.chain = 42;
  record.anchor->name.version = 42;
  return record;
}

Record TheFirst() {
  Record record = ARebase();
  record.version = 0;
  record.parent = std::nullopt;
  record.delta_bytes = 0;
  record.chain = 0;
  record.anchor->name.version = 0;
  return record;
}

constexpr std::string_view kRecordJson =
    R"({"format":"weightwire-record","run_id":"00112233445566778899aabbccddeeff","version":"42",)"
    R"("parent_hash":"1111111111111111111111111111111111111111111111111111111111111111",)"
    R"("step":"18446744073709551615","time":"2026-11-15T08:00:00Z","writer_id":"0123456789abcdef0123456789abcdef",)"
    R"("layout_hash":"2222222222222222222222222222222222222222222222222222222222222222",)"
    R"("digest":"3333333333333333333333333333333333333333333333333333333333333333",)"
    R"("delta":{"parts":[{"key":"deltas/00000000000000000041-00000000000000000042/)"
    R"(4444444444444444444444444444444444444444444444444444444444444444.safetensors","bytes":"10",)"
    R"("hash":"4444444444444444444444444444444444444444444444444444444444444444"},)"
    R"({"key":"deltas/00000000000000000041-00000000000000000042/)"
    R"(5555555555555555555555555555555555555555555555555555555555555555.safetensors","bytes":"20",)"
    R"("hash":"5555555555555555555555555555555555555555555555555555555555555555"}]},)"
    R"("changed_elements":"7","total_delta_bytes":"1000","chain_start":"40",)"
    R"("anchor":{"version":"41","id":"0123456789abcdef0123456789abcdef","bytes":"5000",)"
    R"("manifest_hash":"6666666666666666666666666666666666666666666666666666666666666666"},"read_features":[]})";

constexpr std::string_view kFirstJson =
    R"({"format":"weightwire-record","run_id":"00112233445566778899aabbccddeeff","version":"0","parent_hash":null,)"
    R"("step":"18446744073709551615","time":"2026-11-15T08:00:00Z","writer_id":"0123456789abcdef0123456789abcdef",)"
    R"("layout_hash":"2222222222222222222222222222222222222222222222222222222222222222",)"
    R"("digest":"3333333333333333333333333333333333333333333333333333333333333333",)"
    R"("delta":null,"changed_elements":"7","total_delta_bytes":"0","chain_start":"0",)"
    R"("anchor":{"version":"0","id":"0123456789abcdef0123456789abcdef","bytes":"5000",)"
    R"("manifest_hash":"6666666666666666666666666666666666666666666666666666666666666666"},"read_features":[]})";

TEST(Records, Golden) {
  EXPECT_EQ(ToJson(ARecord()), kRecordJson);
  EXPECT_EQ(ParseRecord(kRecordJson).value(), ARecord());
  EXPECT_EQ(ToJson(TheFirst()), kFirstJson);
  EXPECT_EQ(ParseRecord(kFirstJson).value(), TheFirst());
  EXPECT_EQ(ARecord().OwnDeltaBytes(), 30U);
  EXPECT_EQ(TheFirst().OwnDeltaBytes(), 0U);
}

TEST(Records, AcceptsRecordsAtTheLimits) {
  EXPECT_TRUE(Succeeds(ParseRecord(ToJson(ARebase()))));
  Record record = ARecord();
  record.anchor = std::nullopt;
  EXPECT_EQ(ParseRecord(ToJson(record)).value(), record);
  record.delta->clear();  // the state of version 41 again
  EXPECT_EQ(ParseRecord(ToJson(record)).value(), record);
  record.chain = 0;
  EXPECT_EQ(ParseRecord(ToJson(record)).value(), record);
  record = ARecord();
  record.delta_bytes = 30;
  record.anchor->name.version = 42;
  EXPECT_EQ(ParseRecord(ToJson(record)).value(), record);
}

TEST(Records, RefusesRecordsThatBreakAnyRule) {
  const auto refused = [](Record record, const auto& change, std::string_view why) {
    SCOPED_TRACE(why);
    change(record);
    ExpectError(ParseRecord(ToJson(record)), ErrorCode::kCorrupt, why);
  };
  refused(
      ARebase(), [](Record& r) { r.version = r.chain = r.anchor->name.version = kMaxVersion + 1; }, "too large");
  refused(
      ARecord(), [](Record& r) { r.parent = std::nullopt; }, "no parent");
  refused(
      TheFirst(), [](Record& r) { r.parent = HashOf('1'); }, "no parent");
  refused(
      TheFirst(), [](Record& r) { r.delta.emplace(); }, "version 0 has a delta");
  refused(
      TheFirst(), [](Record& r) { r.delta_bytes = 1; }, "version 0 has");
  refused(
      TheFirst(), [](Record& r) { r.chain = 1; }, "\"chain_start\"");
  refused(
      ARecord(), [](Record& r) { r.chain = 42; }, "\"chain_start\"");
  refused(
      ARecord(), [](Record& r) { r.chain = 43; }, "\"chain_start\"");
  refused(
      ARebase(), [](Record& r) { r.chain = 41; }, "\"chain_start\"");
  refused(
      ARecord(), [](Record& r) { r.anchor->name.version = 43; }, "later version");
  refused(
      ARebase(), [](Record& r) { r.anchor->name.version = 43; }, "later version");
  refused(
      ARebase(), [](Record& r) { r.anchor->name.version = 41; }, "neither");
  refused(
      ARebase(), [](Record& r) { r.anchor = std::nullopt; }, "neither");
  refused(
      ARecord(), [](Record& r) { r.delta_bytes = 29; }, "\"total_delta_bytes\"");
  refused(
      ARecord(), [](Record& r) { r.time = "\x1b[31mnow"; }, "\"time\"");
}

TEST(Records, RefusesPartsUnderAnotherVersionsKey) {
  const auto refused = [](const auto& change, ErrorCode code) {
    Record record = ARecord();
    change(record.delta->front());
    ExpectError(ParseRecord(ToJson(record)), code);
  };
  refused([](PartRef& part) { part.key = PartKey(40, 42, part.hash); }, ErrorCode::kCorrupt);
  refused([](PartRef& part) { part.key = PartKey(42, 43, part.hash); }, ErrorCode::kCorrupt);
  refused([](PartRef& part) { part.key = "../../etc/passwd"; }, ErrorCode::kCorrupt);
  refused([](PartRef& part) { part.key += "x"; }, ErrorCode::kCorrupt);
  refused([](PartRef& part) { part.hash = HashOf('5'); }, ErrorCode::kCorrupt);
  refused([](PartRef& part) { part.size_bytes = kMaxPartBytes + 1; }, ErrorCode::kLimit);
}

TEST(Records, TheLimitOfPartsFitsIntoARecord) {
  Record record = ARecord();
  record.delta->assign(kMaxParts, {PartKey(41, 42, HashOf('4')), kMaxPartBytes, HashOf('4')});
  record.delta_bytes = kMaxParts * kMaxPartBytes;
  const std::string json = ToJson(record);
  EXPECT_LE(json.size(), kMaxRecordBytes);
  EXPECT_TRUE(Succeeds(ParseRecord(json)));
  ExpectError(ParseRecord(Replaced(json, R"("parts":[)", R"("parts":[1,)")), ErrorCode::kLimit, "\"parts\"");
}

TEST(Records, ReportsUnknownFeaturesBeforeOtherErrors) {
  Record record = ARecord();
  record.read = {"teleport"};
  ExpectError(ParseRecord(ToJson(record)), ErrorCode::kUnsupported, "\"teleport\"");
  ExpectError(ParseRecord(R"({"format":"weightwire-record","read_features":["teleport"]})"), ErrorCode::kUnsupported);
}

// Without any one of its keys, with null or another type in its place, no object is accepted.
template <typename Parse>
void EveryKeyIsNeeded(std::string_view json, const std::vector<std::string>& keys, const Parse& parse) {
  ASSERT_TRUE(Succeeds(parse(json)));
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    ExpectError(parse(Replaced(std::string(json), "\"" + key + "\":", "\"not-" + key + "\":")), ErrorCode::kCorrupt,
                "\"" + key + "\"");
    ExpectError(parse(Replaced(std::string(json), "\"" + key + "\":", "\"" + key + "\":-1,\"not-" + key + "\":")),
                ErrorCode::kCorrupt, "\"" + key + "\"");
  }
  // And one more is ignored.
  EXPECT_TRUE(Succeeds(parse(Replaced(std::string(json), "{", R"({"novel":{"a":[1.5,null]},)"))));
}

TEST(Records, RefusesRecordsWithAMissingKey) {
  EveryKeyIsNeeded(kRecordJson, {"format",
                                 "run_id",
                                 "version",
                                 "parent_hash",
                                 "step",
                                 "time",
                                 "writer_id",
                                 "layout_hash",
                                 "digest",
                                 "delta",
                                 "parts",
                                 "key",
                                 "bytes",
                                 "hash",
                                 "changed_elements",
                                 "total_delta_bytes",
                                 "chain_start",
                                 "anchor",
                                 "id",
                                 "manifest_hash",
                                 "read_features"},
                   ParseRecord);
}

Record AnyRecord(Random& random) {
  Record record;
  record.run = AnyId(random);
  record.version = AnyNumber(random, kMaxVersion + 1);
  if (random.Below(4) == 0) record.version = 0;
  if (record.version > 0) record.parent = AnyHash(random);
  record.step = random.Next() >> random.Below(64);
  record.time = fmt::format("{:04}-11-15T08:00:00Z", random.Below(10'000));
  record.writer = AnyId(random);
  record.layout = AnyHash(random);
  record.state = AnyHash(random);
  record.changed = random.Next() >> random.Below(64);
  if (record.version > 0) record.delta_bytes = AnyNumber(random, std::uint64_t{1} << 62);
  const bool full = record.version == 0 || random.Below(3) == 0;
  record.chain = full ? record.version : AnyNumber(random, record.version);
  if (full || random.Below(2) == 0) {
    record.anchor = AnchorRef{{full ? record.version : AnyNumber(random, record.version + 1), AnyId(random)},
                              random.Next() >> random.Below(64),
                              AnyHash(random)};
  }
  if (!full) {
    record.delta.emplace();
    for (std::uint64_t part = random.Below(4); part > 0; --part) {
      const Sha256Digest hash = AnyHash(random);
      const std::uint64_t bytes = AnyNumber(random, kMaxPartBytes + 1);
      record.delta->push_back({PartKey(record.version - 1, record.version, hash), bytes, hash});
      record.delta_bytes += bytes;
    }
  }
  return record;
}

RC_GTEST_PROP(RecordProperty, ReadsBack, (std::uint64_t seed)) {
  SeededRandom random(seed);
  const Record record = AnyRecord(random);
  const auto parsed = ParseRecord(ToJson(record));
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed.value() == record);
  RC_ASSERT(ToJson(parsed.value()) == ToJson(record));
}

// --- anchors ---

constexpr std::string_view kAnchorJson =
    R"({"format":"weightwire-anchor","run_id":"00112233445566778899aabbccddeeff","version":"42",)"
    R"("id":"0123456789abcdef0123456789abcdef",)"
    R"("layout_hash":"2222222222222222222222222222222222222222222222222222222222222222",)"
    R"("digest":"3333333333333333333333333333333333333333333333333333333333333333","total_delta_bytes":"1000",)"
    R"("files":[{"name":"config.json","bytes":"12",)"
    R"("hash":"4444444444444444444444444444444444444444444444444444444444444444"},)"
    R"({"name":"sub/model.safetensors","bytes":"18446744073709551603",)"
    R"("hash":"5555555555555555555555555555555555555555555555555555555555555555"}]})";

AnchorManifest AManifest() {
  AnchorManifest manifest;
  manifest.run = kRun;
  manifest.name = {42, kOther};
  manifest.layout = HashOf('2');
  manifest.state = HashOf('3');
  manifest.delta_bytes = 1000;
  manifest.files = {{"config.json", 12, HashOf('4')}, {"sub/model.safetensors", ~std::uint64_t{12}, HashOf('5')}};
  return manifest;
}

TEST(Anchors, Golden) {
  EXPECT_EQ(ToJson(AManifest()), kAnchorJson);
  EXPECT_EQ(ParseAnchorManifest(kAnchorJson).value(), AManifest());
  EXPECT_EQ(AManifest().TotalBytes(), ~std::uint64_t{0});
  EveryKeyIsNeeded(kAnchorJson,
                   {"format", "run_id", "version", "id", "layout_hash", "digest", "total_delta_bytes", "files", "name",
                    "bytes", "hash"},
                   ParseAnchorManifest);
}

TEST(Anchors, Refusals) {
  const auto refused = [](const auto& change, ErrorCode code, std::string_view why) {
    SCOPED_TRACE(why);
    AnchorManifest manifest = AManifest();
    change(manifest.files);
    ExpectError(ParseAnchorManifest(ToJson(manifest)), code, why);
  };
  using Files = std::vector<AnchorFile>;
  refused([](Files& files) { files[1].name = "config.json"; }, ErrorCode::kCorrupt, "twice");
  refused([](Files& files) { files[0].size_bytes = 13; }, ErrorCode::kCorrupt, "too many bytes");
  for (const char* name : {"", "..", "../x", "/x", ".x", "a/.b", "anchor.json", "a b"}) {
    refused([&](Files& files) { files[0].name = name; }, ErrorCode::kCorrupt, "cannot be a file");
  }
  refused([](Files& files) { files[0].name = "sub"; }, ErrorCode::kCorrupt, "also a folder");
  refused(
      [](Files& files) {  // another name comes between the two in order
        files[0].name = "sub-1";
        files.push_back({"sub", 0, HashOf('4')});
      },
      ErrorCode::kCorrupt, "also a folder");
  refused([](Files& files) { files.assign(kMaxAnchorFiles + 1, {"x", 0, HashOf('4')}); }, ErrorCode::kLimit, "files");
}

AnchorManifest AManifestOfPieces() {
  AnchorManifest manifest = AManifest();
  manifest.assembled = {{"model.safetensors", 80}};
  manifest.files = {{"config.json", 12, HashOf('4')},
                    {"pieces/00000", 50, HashOf('5'), {{0, 0, 20, 1, 20}, {0, 20, 5, 6, 10}}},
                    {"pieces/00001", 30, HashOf('6'), {{0, 25, 5, 6, 10}}}};
  return manifest;
}

TEST(Anchors, Pieces) {
  const AnchorManifest manifest = AManifestOfPieces();
  const auto read = ParseAnchorManifest(ToJson(manifest));
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read.value(), manifest);
  EXPECT_NE(ToJson(manifest).find(
                R"("places":[{"file":"0","offset_bytes":"25","row_bytes":"5","rows":"6","stride_bytes":"10"}])"),
            std::string::npos);
  EXPECT_NE(ToJson(manifest).find(R"("assembled":[{"name":"model.safetensors","bytes":"80"}])"), std::string::npos);
  EveryKeyIsNeeded(
      R"({"format":"weightwire-anchor","run_id":"00112233445566778899aabbccddeeff","version":"42",)"
      R"("id":"0123456789abcdef0123456789abcdef",)"
      R"("layout_hash":"2222222222222222222222222222222222222222222222222222222222222222",)"
      R"("digest":"3333333333333333333333333333333333333333333333333333333333333333","total_delta_bytes":"1",)"
      R"("files":[{"hash":"4444444444444444444444444444444444444444444444444444444444444444",)"
      R"("places":[{"file":"0","offset_bytes":"0","row_bytes":"5","rows":"6","stride_bytes":"5"}],"name":"p","bytes":"30"}],)"
      R"("assembled":[{"name":"m.safetensors","bytes":"30"}]})",
      {"file", "offset_bytes", "row_bytes", "rows", "stride_bytes"}, ParseAnchorManifest);
}

TEST(Anchors, RefusesPlacesOutsideAFile) {
  const auto refused = [](const auto& change, std::string_view why) {
    SCOPED_TRACE(why);
    AnchorManifest manifest = AManifestOfPieces();
    change(manifest.files[2].places[0], manifest);
    ExpectError(ParseAnchorManifest(ToJson(manifest)), ErrorCode::kCorrupt, why);
  };
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  refused([](Place& place, AnchorManifest&) { place.file = 1; }, "not within a file");
  refused([](Place& place, AnchorManifest&) { place.at = 46; }, "not within a file");
  refused([](Place& place, AnchorManifest&) { place.at = kMost; }, "not within a file");
  refused([](Place& place, AnchorManifest&) { place.stride = 16; }, "not within a file");
  refused([](Place& place, AnchorManifest&) { place.stride = kMost / 4; }, "not within a file");
  refused([](Place& place, AnchorManifest&) { place.stride = 4; }, "not within a file");  // rows overlap
  refused([](Place& place, AnchorManifest&) { place.rows = 0; }, "no bytes, or too many");
  refused([](Place& place, AnchorManifest&) { place.row_bytes = 0; }, "no bytes, or too many");
  refused([](Place& place, AnchorManifest&) { place.rows = kMost; }, "no bytes, or too many");
  refused([](Place& place, AnchorManifest&) { place.rows = 5; }, "do not add up to its size");
  refused([](Place&, AnchorManifest& manifest) { manifest.assembled.clear(); }, "not within a file");
  refused([](Place&, AnchorManifest& manifest) { manifest.files[0].name = "model.safetensors"; }, "twice");
  refused([](Place&, AnchorManifest& manifest) { manifest.assembled[0].name = "other.json"; }, "holds no weights");
  refused([](Place&, AnchorManifest& manifest) { manifest.assembled[0].size_bytes = 81; }, "do not make up");
  refused(
      [](Place&, AnchorManifest& manifest) {
        manifest.assembled.push_back({"x.safetensors", 1});
      },
      "do not make up");
  refused([](Place&, AnchorManifest& manifest) { manifest.files.pop_back(); }, "do not make up");
  refused([](Place&, AnchorManifest& manifest) { manifest.assembled[0].name = "../x"; }, "cannot be a file");
  refused([](Place&, AnchorManifest& manifest) { manifest.files[1].name = "model.safetensors/0"; }, "also a folder");
}

RC_GTEST_PROP(AnchorProperty, ReadsBack, (std::uint64_t seed)) {
  SeededRandom random(seed);
  AnchorManifest manifest;
  manifest.run = AnyId(random);
  manifest.name = {AnyNumber(random, kMaxVersion + 1), AnyId(random)};
  manifest.layout = AnyHash(random);
  manifest.state = AnyHash(random);
  manifest.delta_bytes = random.Next();
  for (std::uint64_t file = random.Below(5); file > 0; --file) {
    manifest.files.push_back(
        {fmt::format("f{}/x{}", file, AnyText(random, "aZ0._-", 20)), random.Next() >> 8, AnyHash(random)});
  }
  const auto parsed = ParseAnchorManifest(ToJson(manifest));
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed.value() == manifest);
}

// --- leases ---

constexpr std::string_view kLeaseJson =
    R"({"format":"weightwire-lease","run_id":"00112233445566778899aabbccddeeff","id":"0123456789abcdef0123456789abcdef",)"
    R"("name":"rollout 7","version":"41","needs_deltas_after":"40",)"
    R"("needs_anchor":"anchors/00000000000000000040/00112233445566778899aabbccddeeff","ttl_seconds":600})";

Lease ALease() {
  Lease lease;
  lease.run = kRun;
  lease.follower = kOther;
  lease.name = "rollout 7";
  lease.holds = 41;
  lease.needs_from = 40;
  lease.needs_anchor = AnchorName{40, kRun};
  lease.seconds = 600;
  return lease;
}

TEST(Leases, Golden) {
  EXPECT_EQ(ToJson(ALease()), kLeaseJson);
  EXPECT_EQ(ParseLease(kLeaseJson).value(), ALease());
  EveryKeyIsNeeded(kLeaseJson,
                   {"format", "run_id", "id", "name", "version", "needs_deltas_after", "needs_anchor", "ttl_seconds"},
                   ParseLease);
  Lease lease = ALease();
  lease.holds = lease.needs_from = std::nullopt;
  lease.needs_anchor = std::nullopt;
  EXPECT_EQ(ToJson(lease),
            R"({"format":"weightwire-lease","run_id":"00112233445566778899aabbccddeeff",)"
            R"("id":"0123456789abcdef0123456789abcdef","name":"rollout 7","version":null,"needs_deltas_after":null,)"
            R"("needs_anchor":null,"ttl_seconds":600})");
  EXPECT_EQ(ParseLease(ToJson(lease)).value(), lease);
}

TEST(Leases, RefusesNamesWithControlCharacters) {
  const auto named = [](std::string name) {
    Lease lease = ALease();
    lease.name = std::move(name);
    return ParseLease(ToJson(lease));
  };
  for (const char* name : {"", "caf\xc3\xa9", "\xe2\x82\xac \xc2\xa0"}) EXPECT_TRUE(Succeeds(named(name))) << name;
  EXPECT_TRUE(Succeeds(named(std::string(kMaxFollowerNameBytes, 'x'))));
  for (const char* name : {"a\nb", "\x1b[31m", "\x7f",
                           "a\xc2\x9b"
                           "31m",
                           "\xc2\x80"}) {
    ExpectError(named(name), ErrorCode::kCorrupt, "\"name\"");
  }
  ExpectError(named(std::string(kMaxFollowerNameBytes + 1, 'x')), ErrorCode::kCorrupt, "\"name\"");
}

TEST(Leases, Refusals) {
  const std::string json(kLeaseJson);
  for (const char* seconds : {"59", "86401", "0", "\"600\"", "600.0", "null"}) {
    ExpectError(ParseLease(Replaced(json, "600", seconds)), ErrorCode::kCorrupt, "\"ttl_seconds\"");
  }
  for (const char* seconds : {"60", "86400"}) EXPECT_TRUE(Succeeds(ParseLease(Replaced(json, "600", seconds))));
  const std::string anchor = "anchors/00000000000000000040/00112233445566778899aabbccddeeff";
  for (const std::string& bad : {std::string(""), std::string("x"), anchor + "/", anchor + "/model.safetensors",
                                 anchor + "/../x", "/" + anchor}) {
    ExpectError(ParseLease(Replaced(json, anchor, bad)), ErrorCode::kCorrupt, "\"needs_anchor\"");
  }
  ExpectError(ParseLease(json + std::string(kMaxLeaseBytes, ' ')), ErrorCode::kLimit);
}

TEST(Leases, AreActiveForTheirSeconds) {
  const Lease lease = ALease();
  const WallTime start(std::chrono::hours(1000));
  EXPECT_TRUE(IsActive(lease, start, start));
  EXPECT_TRUE(IsActive(lease, start, start - std::chrono::hours(1)));  // a clock that was set back
  EXPECT_TRUE(IsActive(lease, start, start + std::chrono::seconds(600)));
  EXPECT_FALSE(IsActive(lease, start, start + std::chrono::seconds(600) + kStoreClockSlack + std::chrono::seconds(1)));
}

RC_GTEST_PROP(LeaseProperty, ReadsBack, (std::uint64_t seed)) {
  SeededRandom random(seed);
  Lease lease;
  lease.run = AnyId(random);
  lease.follower = AnyId(random);
  lease.name = AnyText(random, "ab \"\\/{}", 128);
  if (random.Below(2) == 0) lease.holds = random.Next() >> random.Below(64);
  if (random.Below(2) == 0) lease.needs_from = random.Next() >> random.Below(64);
  if (random.Below(2) == 0) lease.needs_anchor = AnchorName{AnyNumber(random, kMaxVersion + 1), AnyId(random)};
  lease.seconds = kMinLeaseSeconds + random.Below(kMaxLeaseSeconds - kMinLeaseSeconds + 1);
  const auto parsed = ParseLease(ToJson(lease));
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed.value() == lease);
}

// --- marks ---

const std::string kFolder = "deltas/00000000000000000041-00000000000000000042/";
const std::string kAnchorPlace = "anchors/00000000000000000040/00112233445566778899aabbccddeeff/";

TEST(Marks, Golden) {
  Mark mark;
  mark.run = kRun;
  mark.id = kOther;
  mark.keys = {kFolder, kAnchorPlace, PartKey(42, 43, HashOf('4'))};
  const std::string json =
      R"({"format":"weightwire-mark","run_id":"00112233445566778899aabbccddeeff","id":"0123456789abcdef0123456789abcdef",)"
      R"("keys":["deltas/00000000000000000041-00000000000000000042/",)"
      R"("anchors/00000000000000000040/00112233445566778899aabbccddeeff/",)"
      R"("deltas/00000000000000000042-00000000000000000043/)"
      R"(4444444444444444444444444444444444444444444444444444444444444444.safetensors"]})";
  EXPECT_EQ(ToJson(mark), json);
  EXPECT_EQ(ParseMark(json).value(), mark);
  EveryKeyIsNeeded(json, {"format", "run_id", "id", "keys"}, ParseMark);
}

TEST(Marks, NameEverythingBelowAFolder) {
  Mark mark;
  mark.keys = {kFolder, kAnchorPlace, PartKey(42, 43, HashOf('4'))};
  EXPECT_TRUE(mark.Names(PartKey(41, 42, HashOf('4'))));
  EXPECT_TRUE(mark.Names(kFolder));
  EXPECT_TRUE(mark.Names(kAnchorPlace + "anchor.json"));
  EXPECT_TRUE(mark.Names(PartKey(42, 43, HashOf('4'))));
  EXPECT_FALSE(mark.Names(PartKey(42, 43, HashOf('5'))));
  EXPECT_FALSE(mark.Names(PartKey(42, 43, HashOf('4')) + "x"));
  EXPECT_FALSE(mark.Names(DeltaFolder(42, 43)));
  EXPECT_FALSE(mark.Names(kFolder.substr(0, kFolder.size() - 1)));
  EXPECT_FALSE(Mark().Names(kFolder));
}

TEST(Marks, RefuseKeysThatMustStay) {
  const auto marked = [](const std::string& key) {
    Mark mark;
    mark.keys = {key};
    return ParseMark(ToJson(mark));
  };
  EXPECT_TRUE(Succeeds(marked(kFolder)));
  EXPECT_TRUE(Succeeds(marked(kFolder + "x")));
  EXPECT_TRUE(Succeeds(marked(kAnchorPlace)));
  for (const std::string& key : {std::string(""),
                                 std::string("/"),
                                 std::string("run.json"),
                                 RecordKey(0),
                                 LayoutKey(HashOf('1')),
                                 LeaseKey(kRun),
                                 MarkKey(kRun),
                                 "probe/" + ToHex(kRun),
                                 std::string("versions/"),
                                 std::string("deltas/"),
                                 std::string("anchors/"),
                                 std::string("anchors/00000000000000000040/"),
                                 kFolder + "sub/",
                                 kFolder + "sub/x",
                                 kFolder + "..",
                                 kFolder + "a b",
                                 kFolder + "../x",
                                 kAnchorPlace + "anchor.json",
                                 kAnchorPlace + "sub/",
                                 kAnchorPlace.substr(0, kAnchorPlace.size() - 1),
                                 "/" + kFolder,
                                 "x/../" + kFolder}) {
    ExpectError(marked(key), ErrorCode::kCorrupt, "nothing that may be removed");
  }
}

}  // namespace
}  // namespace weightwire
