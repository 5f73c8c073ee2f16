// The link of a group of one rank: its committer is in the same process.
#pragma once

#include <cstdint>
#include <optional>

#include "publish/committer.h"
#include "publish/link.h"

namespace weightwire {

class DirectLink final : public CommitterLink {
 public:
  // The committer must outlive it.
  explicit DirectLink(Committer& committer) : committer_(committer) {}

  void Send(std::uint64_t call, const Contribution& contribution, MonotonicTime now) override {
    committer_.Take(call, {contribution}, now);
  }
  std::optional<Verdict> TakeVerdict(MonotonicTime /*now*/) override { return committer_.TakeVerdict(); }

 private:
  Committer& committer_;
};

}  // namespace weightwire
