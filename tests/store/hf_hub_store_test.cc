#include "store/backends/hf_hub_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "store/bytes.h"
#include "store/http_server.h"

namespace weightwire {
namespace {

using testing::Bytes;
using testing::BytesOf;
using testing::ExpectError;
using testing::HttpServer;
using testing::kSmall;
using testing::ServerReply;
using testing::ServerRequest;
using testing::Succeeds;

// The Hub's interface for buckets, with a second host for content, as it is described in its documentation.
class HfHubStoreTest : public ::testing::Test {
 protected:
  HfHubStoreTest()
      : cdn_([this](const ServerRequest& request) { return Cdn(request); }),
        hub_([this](const ServerRequest& request) { return Hub(request); }) {
    HfHubOptions options;
    options.endpoint = hub_.Url();
    options.bucket = "owner/name";
    options.prefix = "run";
    options.name = "hf://buckets/owner/name/run";
    options.token = Secret("hf_secrettoken");
    store_ = std::make_unique<HfHubStore>(options, &clock_);
    options.token = Secret();
    public_store_ = std::make_unique<HfHubStore>(options, &clock_);
  }

  static nlohmann::json Entry(const std::string& path, const std::string& content) {
    return {{"type", "file"},
            {"path", path},
            {"size", content.size()},
            {"xetHash", "x"},
            {"mtime", "2001-01-01T00:00:00.000Z"},
            {"uploadedAt", "2026-11-15T08:45:01.000Z"}};
  }

  ServerReply Hub(const ServerRequest& request) {
    ServerReply reply;
    reply.headers["Date"] = "Sun, 15 Nov 2026 09:00:00 GMT";
    if (status_ != 200) {
      reply.status = status_;
      return reply;
    }
    if (request.Header("authorization") != "Bearer hf_secrettoken") {
      reply.status = 401;
      return reply;
    }
    const std::string resolve = "/buckets/owner/name/resolve/";
    const std::string tree = "/api/buckets/owner/name/tree/";
    if (request.path.starts_with(resolve)) {
      const std::string path = request.path.substr(resolve.size());
      reply.status = objects_.contains(path) ? 302 : 404;
      reply.headers["Location"] = cdn_.Url() + "/" + path + "?Signature=signedaddress";
    } else if (request.path == "/api/buckets/owner/name/paths-info" && request.method == "POST") {
      nlohmann::json entries = nlohmann::json::array();
      const auto wanted = nlohmann::json::parse(request.body);
      for (const auto& path : wanted["paths"]) {
        const auto found = objects_.find(path.get<std::string>());
        if (found != objects_.end()) entries.push_back(Entry(found->first, found->second));
      }
      reply.body = entries.dump();
    } else if (request.path.starts_with(tree)) {
      // Pages of two, in the wrong order, with folders, and with neighbours whose names only begin alike.
      const std::string folder = request.path.substr(tree.size());
      std::vector<nlohmann::json> all = {{{"type", "directory"}, {"path", folder}}};
      for (const auto& [path, content] : objects_) {
        if (path.starts_with(folder)) all.insert(all.begin(), Entry(path, content));
      }
      const std::size_t start = request.query.starts_with("cursor=") ? std::stoul(request.query.substr(7)) : 0;
      nlohmann::json page = nlohmann::json::array();
      for (std::size_t i = start; i < std::min(all.size(), start + 2); ++i) page.push_back(all[i]);
      if (start + 2 < all.size()) {
        reply.headers["Link"] = "<" + (next_host_.empty() ? hub_.Url() : next_host_) + request.path +
                                "?cursor=" + std::to_string(in_a_circle_ ? 2 : start + 2) + ">; rel=\"next\"";
      }
      reply.body = page.dump();
    } else {
      reply.status = 400;
    }
    return reply;
  }

  ServerReply Cdn(const ServerRequest& request) {
    if (!request.Header("authorization").empty()) leaked_ = true;
    ServerReply reply;
    const std::string& content = objects_.at(request.path.substr(1));
    std::size_t first = 0;
    std::size_t last = 0;
    if (std::sscanf(request.Header("range").c_str(), "bytes=%zu-%zu", &first, &last) != 2) {
      reply.body = content;
    } else if (first >= content.size()) {
      reply.status = 416;
      reply.headers["Content-Range"] = "bytes */" + std::to_string(content.size());
    } else {
      reply.status = 206;
      reply.headers["Content-Range"] = "bytes " + std::to_string(first) + "-x/" + std::to_string(content.size());
      reply.body = content.substr(first, last - first + 1);
    }
    return reply;
  }

  SystemClock clock_;
  std::map<std::string, std::string> objects_ = {
      {"run/run.json", "wire"}, {"run/versions/1", "one"}, {"run/versions/2", "second"}, {"run/a-b", "x"},
      {"run/a/b", "y"},         {"run/not a key", "z"},    {"running/other", "z"},       {"other", "z"}};
  int status_ = 200;
  bool leaked_ = false;
  std::string next_host_;
  bool in_a_circle_ = false;
  HttpServer cdn_;
  HttpServer hub_;
  std::unique_ptr<HfHubStore> store_;
  std::unique_ptr<HfHubStore> public_store_;
};

TEST_F(HfHubStoreTest, ReadsWithoutTakingTheTokenElsewhere) {
  EXPECT_EQ(store_->Get("versions/2", kSmall).value(), BytesOf("second"));
  Bytes out(3);
  ASSERT_TRUE(Succeeds(store_->Read("versions/2", 1, out)));
  EXPECT_EQ(out, BytesOf("eco"));
  EXPECT_FALSE(leaked_);
  ExpectError(store_->Get("versions/3", kSmall), ErrorCode::kNotFound);
  ExpectError(store_->Get("versions/2", 3), ErrorCode::kLimit);
  ExpectError(store_->Read("versions/2", 4, out), ErrorCode::kCorrupt);
  ExpectError(store_->Read("versions/2", 100, out), ErrorCode::kCorrupt);
}

TEST_F(HfHubStoreTest, LooksAndLists) {
  const auto stat = store_->Stat("versions/2");
  ASSERT_TRUE(Succeeds(stat));
  EXPECT_EQ(stat.value().size_bytes, 6U);
  EXPECT_EQ(stat.value().last_modified, WallTime(std::chrono::sys_days(std::chrono::year(2026) / 11 / 15)) +
                                            std::chrono::hours(8) + std::chrono::minutes(45) + std::chrono::seconds(1));
  ExpectError(store_->Stat("versions/3"), ErrorCode::kNotFound);
  const auto keys = [&](const char* prefix, const char* start_after, std::size_t limit) {
    std::vector<std::string> found;
    const auto listed = store_->List(prefix, start_after, limit);
    if (Succeeds(listed)) {
      for (const ObjectInfo& object : listed.value()) found.push_back(object.key);
    }
    return found;
  };
  EXPECT_EQ(keys("", "", 10), (std::vector<std::string>{"a-b", "a/b", "run.json", "versions/1", "versions/2"}));
  EXPECT_EQ(keys("versions/", "", 10), (std::vector<std::string>{"versions/1", "versions/2"}));
  EXPECT_EQ(keys("", "a/b", 2), (std::vector<std::string>{"run.json", "versions/1"}));
  EXPECT_EQ(keys("v", "", 1), (std::vector<std::string>{"versions/1"}));
  EXPECT_EQ(keys("none/", "", 10), std::vector<std::string>());
  EXPECT_GE(store_->Now().value(), stat.value().last_modified);
}

TEST_F(HfHubStoreTest, TheTokenDoesNotFollowTheListToAnotherHost) {
  next_host_ = cdn_.Url();
  ExpectError(store_->List("", "", 10), ErrorCode::kCorrupt);
  EXPECT_FALSE(leaked_);
}

TEST_F(HfHubStoreTest, PagesThatLeadInACircleAreNotFollowedForEver) {
  for (int i = 0; i < 6; ++i) objects_["run/more/" + std::to_string(i)] = "x";
  in_a_circle_ = true;
  ExpectError(store_->List("", "", 10), ErrorCode::kCorrupt);
}

TEST_F(HfHubStoreTest, WithoutATokenAPrivateBucketIsRefused) {
  const auto got = public_store_->Get("run.json", kSmall);
  ExpectError(got, ErrorCode::kRefused);
  EXPECT_THAT(got.error().message(), ::testing::HasSubstr("HF_TOKEN"));
}

TEST_F(HfHubStoreTest, OverloadMeansNotNow) {
  for (const int status : {429, 500, 503}) {
    status_ = status;
    const auto got = store_->Get("run.json", kSmall);
    ExpectError(got, ErrorCode::kUnavailable);
    EXPECT_THAT(got.error().message(), ::testing::Not(::testing::HasSubstr("secrettoken")));
    ExpectError(store_->List("", "", 10), ErrorCode::kUnavailable);
    ExpectError(store_->Stat("a"), ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace weightwire
