// The journal: what is written comes back, forwards and backwards, for all widths and ties; what is damaged is refused.
#include "follow/in_place/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "follow/in_place/journal_writer.h"
#include "follow/mirror_world.h"
#include "support/owned_tensor.h"
#include "support/safetensors_file.h"

namespace weightwire {
namespace {

using testing::BestKernels;
using testing::Bytes;
using testing::ChangeBetween;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Model;
using testing::ModelOf;
using testing::OneThread;
using testing::RandomTensor;
using testing::SimDisk;
using testing::SimFileSystem;
using testing::Stepped;
using testing::VersionOf;

// A checkpoint of `from` on a disk, and the journal of the way to `to`.
struct Written {
  SimDisk disk;
  SimFileSystem files{disk};
  Checkpoint checkpoint;
  std::shared_ptr<const StagedChange> change;

  Written(const Model& from, const Model& to, std::uint64_t shard_bytes)
      : checkpoint(Put(files, from, shard_bytes)), change(ChangeBetween(VersionOf(0, from), VersionOf(1, to))) {}

  static Checkpoint Put(FileSystem& files, const Model& model, std::uint64_t shard_bytes) {
    EXPECT_TRUE(files.MakeDirectory("c").ok());
    for (const auto& [name, text] : VersionOf(0, model, shard_bytes).files) {
      EXPECT_TRUE(WriteDurably(files, FileSystem::Path("c") / name, text).ok());
    }
    return Checkpoint::Open(files, "c").value();
  }

  // As whoever writes one makes it count.
  Status Name(const Result<std::unique_ptr<NewFile>>& written) {
    if (!written.ok()) return written.error();
    WW_RETURN_IF_ERROR(written.value()->Sync());
    return files.Rename("c/journal.next", "c/journal");
  }
  Status Journalled(bool check_tensors = true) {
    std::vector<std::span<const std::uint8_t>> held;
    for (std::size_t i = 0; i < checkpoint.layout().size(); ++i) held.push_back(checkpoint.bytes(i));
    const auto locations = LocationsIn(checkpoint.files(), checkpoint.layout());
    EXPECT_TRUE(locations.ok());
    JournalRequest request;
    request.change = change.get();
    request.note = "a note";
    request.files = checkpoint.files();
    request.locations = locations.value();
    request.tensors = held;
    request.check_tensors = check_tensors;
    return Name(WriteJournal(files, "c/journal.next", request, BestKernels(), OneThread()));
  }
};

std::string TextOf(std::span<const std::uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

TEST(Journal, LeadsForwardsAndBackForEveryTypeAndDensity) {
  testing::Random random(3);
  for (const std::uint64_t one_in : {1, 2, 30, 1000}) {
    std::vector<OwnedTensor> tensors;
    for (const DType dtype : testing::AllDTypes())
      tensors.push_back(RandomTensor(random, std::string(NameOf(dtype)), dtype, 720));
    tensors.push_back(RandomTensor(random, "empty", DType::kF32, 0));
    const Model before = ModelOf(std::move(tensors));
    const Model after = Stepped(random, before, one_in);
    Written written(before, after, 6000);
    ASSERT_TRUE(written.Journalled().ok());
    const auto journal = Journal::Open(written.files, "c/journal", BestKernels());
    ASSERT_TRUE(journal.ok()) << journal.error().message();
    EXPECT_EQ(journal.value().note(), "a note");
    EXPECT_EQ(journal.value().state_before(), written.change->state_before());
    EXPECT_EQ(journal.value().state_after(), written.change->state_after());
    EXPECT_EQ(journal.value().digests_before(), written.change->digests_before());
    EXPECT_EQ(journal.value().digests_after(), written.change->digests_after());
    const auto old_files = VersionOf(0, before, 6000).files;
    const auto new_files = VersionOf(0, after, 6000).files;
    ASSERT_GT(journal.value().files().size(), 3U);
    for (std::size_t i = 0; i < journal.value().files().size(); ++i) {
      const std::string& name = journal.value().files()[i].name;
      auto map = written.files.MapForUpdate(FileSystem::Path("c") / name);
      const auto bytes = map.value()->ForWriting(0, map.value()->size_bytes()).value();
      EXPECT_TRUE(journal.value().CheckFile(i, bytes, OneThread()).ok());
      journal.value().Write(i, bytes, Journal::Direction::kForward, OneThread());
      EXPECT_EQ(TextOf(bytes), new_files.at(name)) << name;
      EXPECT_TRUE(journal.value().CheckFile(i, bytes, OneThread()).ok());
      journal.value().Write(i, bytes, Journal::Direction::kBack, OneThread());
      EXPECT_EQ(TextOf(bytes), old_files.at(name)) << name;
    }
  }
}

TEST(Journal, ThreadsMakeTheSameBytes) {
  testing::Random random(4);
  const Model before = ModelOf({RandomTensor(random, "a", DType::kBF16, 1'500'000)});
  const Model after = Stepped(random, before, 50);
  Written one(before, after, 1 << 30);
  ASSERT_TRUE(one.Journalled().ok());
  const std::string expected = one.disk.Contents().at("c/journal");
  std::vector<std::span<const std::uint8_t>> held = {one.checkpoint.bytes(0)};
  const auto locations = LocationsIn(one.checkpoint.files(), one.checkpoint.layout());
  JournalRequest request;
  request.change = one.change.get();
  request.note = "a note";
  request.files = one.checkpoint.files();
  request.locations = locations.value();
  request.tensors = held;
  ThreadPool pool(3);
  ASSERT_TRUE(one.Name(WriteJournal(one.files, "c/journal.next", request, BestKernels(), pool)).ok());
  EXPECT_EQ(one.disk.Contents().at("c/journal"), expected);
}

TEST(Journal, AChangedUnitOfTwoBytesTakesLessThanSeven) {
  testing::Random random(5);
  const Model before = ModelOf({RandomTensor(random, "a", DType::kBF16, 1'000'000)});
  Model after = before;
  testing::StepBf16(random, after.tensors[0], 100);
  Written written(before, after, 1 << 30);
  ASSERT_TRUE(written.Journalled().ok());
  const std::uint64_t changed = written.change->tensors()[0].changed();
  const std::size_t size = written.disk.Contents().at("c/journal").size();
  EXPECT_LT(size, 6 * changed + 500);
  EXPECT_GT(size, 5 * changed);
}

TEST(Journal, BothNamesOfATieHaveAPlace) {
  testing::Random random(6);
  const OwnedTensor embed = RandomTensor(random, "embed", DType::kBF16, 10);
  OwnedTensor head = embed;
  head.spec.name = "head";
  const Model both = ModelOf({embed, head});
  SimDisk disk;
  SimFileSystem files(disk);
  const Checkpoint checkpoint = Written::Put(files, both, 1 << 30);
  const auto tied = Layout::Make({embed.spec}, {{"head", "embed"}});
  const auto locations = LocationsIn(checkpoint.files(), tied.value());
  ASSERT_TRUE(locations.ok());
  const auto begin = checkpoint.files()[0].offsets[0];
  EXPECT_THAT(locations.value(), ElementsAre(TensorLocation{0, begin, 0}, TensorLocation{0, begin + 20, 0}));
  const auto other = Layout::Make({embed.spec}, {});
  EXPECT_EQ(LocationsIn(checkpoint.files(), other.value()).error().code(), ErrorCode::kMismatch);
}

class DamagedJournal : public ::testing::Test {
 protected:
  DamagedJournal() : before_(MakeModel()), written_(before_, After(before_), 1 << 30) {
    EXPECT_TRUE(written_.Journalled().ok());
    text_ = written_.disk.Contents().at("c/journal");
  }
  static Model MakeModel() {
    testing::Random random(8);
    return ModelOf({RandomTensor(random, "a", DType::kBF16, 200), RandomTensor(random, "b", DType::kF32, 50)});
  }
  static Model After(const Model& before) {
    testing::Random random(9);
    return Stepped(random, before, 4);
  }
  Result<Journal> OpenAs(std::string text, bool with_digest) {
    if (with_digest) {
      const std::span all(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
      const auto digest = DigestOfRange(all.first(all.size() - kDigestBytes), 0, BestKernels()).ToBytes();
      std::copy(digest.begin(), digest.end(), text.end() - kDigestBytes);
    }
    EXPECT_TRUE(WriteDurably(written_.files, "c/journal", text).ok());
    return Journal::Open(written_.files, "c/journal", BestKernels());
  }

  Model before_;
  Written written_;
  std::string text_;
};

TEST_F(DamagedJournal, AnyByteIsMissed) {
  for (std::size_t at = 0; at < text_.size(); ++at) {
    std::string damaged = text_;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_EQ(OpenAs(damaged, false).error().code(), ErrorCode::kCorrupt) << at;
  }
  for (std::size_t size = 0; size < text_.size(); size += 7) {
    EXPECT_EQ(OpenAs(text_.substr(0, size), false).error().code(), ErrorCode::kCorrupt) << size;
  }
  EXPECT_TRUE(OpenAs(text_, false).ok());
}

// Whatever a journal says under a digest that fits, using it touches nothing but the file it names.
TEST_F(DamagedJournal, NoneLeadsOutOfTheFile) {
  testing::Random random(10);
  int accepted = 0;
  for (int round = 0; round < testing::Rounds(3000); ++round) {
    std::string damaged = text_;
    for (int k = 0; k < 3; ++k) {
      damaged[8 + testing::Below(random, damaged.size() - 8 - kDigestBytes)] = static_cast<char>(random());
    }
    const auto journal = OpenAs(damaged, true);
    if (!journal.ok()) continue;
    ++accepted;
    for (std::size_t i = 0; i < journal.value().files().size(); ++i) {
      Bytes file(std::min<std::uint64_t>(journal.value().files()[i].size_bytes, 1 << 20));
      if (!journal.value().CheckFile(i, file, OneThread()).ok() &&
          file.size() != journal.value().files()[i].size_bytes) {
        continue;
      }
      journal.value().Write(i, file, Journal::Direction::kForward, OneThread());
    }
  }
  EXPECT_GT(accepted, 10);
}

TEST_F(DamagedJournal, BitsThatAreNeitherOldNorNewAreSeen) {
  const auto journal = Journal::Open(written_.files, "c/journal", BestKernels());
  auto map = written_.files.MapForUpdate("c/model.safetensors");
  const auto bytes = map.value()->ForWriting(0, map.value()->size_bytes()).value();
  const Bytes old_bytes(bytes.begin(), bytes.end());
  journal.value().Write(0, bytes, Journal::Direction::kForward, OneThread());
  const Bytes new_bytes(bytes.begin(), bytes.end());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (old_bytes[at] == new_bytes[at]) continue;
    // Half of a unit may be there already.
    bytes[at] = old_bytes[at];
    EXPECT_TRUE(journal.value().CheckFile(0, bytes, OneThread()).ok());
    bytes[at] = static_cast<std::uint8_t>(old_bytes[at] + (old_bytes[at] + 1 == new_bytes[at] ? 2 : 1));
    const Status checked = journal.value().CheckFile(0, bytes, OneThread());
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code(), ErrorCode::kMismatch);
    bytes[at] = new_bytes[at];
  }
  EXPECT_FALSE(journal.value().CheckFile(0, bytes.first(bytes.size() - 1), OneThread()).ok());
}

TEST_F(DamagedJournal, WhatIsNotAsTheChangeSaysIsNotJournalled) {
  auto map = written_.files.MapForUpdate("c/model.safetensors");
  const auto bytes = map.value()->ForWriting(0, map.value()->size_bytes()).value();
  const std::size_t begin = written_.checkpoint.files()[0].offsets[0];
  for (std::size_t at = begin; at < bytes.size(); ++at) bytes[at] ^= 0x80;
  const Status status = written_.Journalled();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(status.error().message(), HasSubstr("changed by something else"));
  EXPECT_EQ(written_.disk.Contents().at("c/journal"), text_) << "the journal before stays";
  EXPECT_FALSE(written_.disk.Contents().contains("c/journal.next"));
}

}  // namespace
}  // namespace weightwire
