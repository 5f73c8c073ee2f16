// Runs in a store without any weights: records, parts and anchors that fit to each other, and objects drawn at random.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/sha256.h"
#include "log/anchor.h"
#include "log/record.h"
#include "log/run.h"
#include "store/store.h"

namespace weightwire::testing {

inline std::span<const std::uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

template <typename T>
bool Succeeds(const T& result) {
  if (!result.ok()) ADD_FAILURE() << result.error().message();
  return result.ok();
}

template <typename T>
void ExpectError(const T& result, ErrorCode code, std::string_view in_message = "") {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), code) << result.error().message();
  EXPECT_NE(result.error().message().find(in_message), std::string::npos) << result.error().message();
}

inline Id AnyId(Random& random) { return NewId(random); }

inline Sha256Digest AnyHash(Random& random) {
  Sha256Digest hash;
  for (std::uint8_t& byte : hash) byte = static_cast<std::uint8_t>(random.Next());
  return hash;
}

// Small, huge, or anything between.
inline std::uint64_t AnyNumber(Random& random, std::uint64_t bound) {
  const std::uint64_t number = random.Next() >> random.Below(64);
  return random.Below(8) == 0 ? bound - 1 : number % bound;
}

inline std::string AnyText(Random& random, std::string_view alphabet, std::size_t most) {
  std::string text;
  const std::size_t size = random.Below(most + 1);
  while (text.size() < size) text += alphabet[random.Below(alphabet.size())];
  return text;
}

// The state of a version, for tests that have no weights.
inline Sha256Digest StateOf(Version version) { return Sha256Of(fmt::format("state {}", version)); }

// A run that grows, version by version. The store must outlive it.
class History {
 public:
  History(Store& store, std::uint64_t seed)
      : random_(seed), run_(Run::Create(store, /*single_writer=*/false, random_).value()) {}

  [[nodiscard]] const Run& run() const { return run_; }
  [[nodiscard]] Store& store() const { return run_.store(); }
  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] std::size_t size() const { return records_.size(); }
  [[nodiscard]] const Record& at(Version version) const { return records_.at(version).record; }
  [[nodiscard]] const KnownRecord& known(Version version) const { return records_.at(version); }
  [[nodiscard]] const Record& newest() const { return records_.back().record; }
  [[nodiscard]] const std::vector<KnownAnchor>& anchors() const { return anchors_; }

  // Version 0, or a rebase, of an anchor with this many bytes.
  Version AddWithAnchor(std::uint64_t anchor_bytes = 100) {
    const Version version = records_.size();
    const std::uint64_t before = records_.empty() ? 0 : newest().delta_bytes;
    Record record = Fresh(version);
    record.delta_bytes = before;
    record.chain = version;
    record.anchor = PutAnchor(version, before, anchor_bytes).Ref();
    Commit(record);
    return version;
  }

  // The next version, with parts of these sizes; with none it has the state of the one before.
  Version Add(const std::vector<std::uint64_t>& part_bytes = {10}) {
    const Version version = records_.size();
    Record record = Fresh(version);
    record.delta.emplace();
    record.delta_bytes = newest().delta_bytes;
    for (const std::uint64_t bytes : part_bytes) {
      const Sha256Digest hash = AnyHash(random_);
      record.delta->push_back({PartKey(version - 1, version, hash), bytes, hash});
      Put(record.delta->back().key, std::string(bytes, 'p'));
      record.delta_bytes += bytes;
    }
    if (part_bytes.empty()) record.state = newest().state;
    record.chain = newest().chain;
    if (!anchors_.empty()) record.anchor = anchors_.back().Ref();
    Commit(record);
    return version;
  }

  // An anchor of a version that exists, of two files with this many bytes together.
  KnownAnchor AddAnchor(Version version, std::uint64_t bytes = 100) {
    return PutAnchor(version, at(version).delta_bytes, bytes);
  }

  KnownAnchor PutAnchor(Version version, std::uint64_t delta_bytes, std::uint64_t bytes) {
    AnchorManifest manifest;
    manifest.run = run_.id();
    manifest.name = {version, NewId(random_)};
    manifest.state = version < records_.size() ? at(version).state : StateOf(version);
    manifest.delta_bytes = delta_bytes;
    for (const auto& [name, size] : {std::pair{"config.json", bytes / 4}, {"model.safetensors", bytes - bytes / 4}}) {
      manifest.files.push_back({name, size, AnyHash(random_)});
      Put(AnchorFolder(manifest.name) + name, std::string(size, 'a'));
    }
    const std::string json = ToJson(manifest);
    Put(AnchorManifestKey(manifest.name), json);
    anchors_.push_back({manifest, Sha256Of(json)});
    return anchors_.back();
  }

  void Put(const std::string& key, std::string_view text) const {
    ASSERT_TRUE(Succeeds(store().Put(key, AsBytes(text))));
  }

 private:
  Record Fresh(Version version) {
    Record record;
    record.run = run_.id();
    record.version = version;
    if (version > 0) record.parent = records_.back().hash;
    record.step = 10 * version;
    record.time = "2026-11-15T08:00:00Z";
    record.writer = NewId(random_);
    record.state = StateOf(version);
    return record;
  }

  void Commit(const Record& record) {
    const std::string json = ToJson(record);
    Put(RecordKey(record.version), json);
    records_.push_back({record, Sha256Of(json)});
  }

  SeededRandom random_;
  Run run_;
  std::vector<KnownRecord> records_;
  std::vector<KnownAnchor> anchors_;
};

}  // namespace weightwire::testing
