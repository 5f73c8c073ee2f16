// The service that the tests of stores use (store/fake_s3.h), as a program: for tests of the whole command.
//
//   misbehaving_s3 plain|hf [N]
//
// It prints a line of JSON with its URL and keys, serves, and ends when its standard input does. The bucket is "bucket"
// (of "owner", for hf). Every N-th request goes wrong, in each way in turn: refused as too many, an internal error, a
// write that is done but not answered, a connection that is closed, a body that is cut off.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "store/fake_s3.h"

namespace weightwire::testing {
namespace {

// Called by one thread at a time, as the service's hooks are.
class Faults {
 public:
  explicit Faults(int every) : every_(every) {}

  std::optional<ServerReply> Before(const ServerRequest&) {
    fault_ = every_ != 0 && ++requests_ % every_ == 0 ? static_cast<Fault>(next_++ % kFaults) : Fault::kNone;
    switch (fault_) {
      case Fault::kSlowDown:
        return S3ErrorReply(503, "SlowDown");
      case Fault::kInternal:
        return S3ErrorReply(500, "InternalError");
      case Fault::kClosed: {
        ServerReply reply;
        reply.no_answer = true;
        return reply;
      }
      default:
        return std::nullopt;
    }
  }
  void After(const ServerRequest&, ServerReply* reply) const {
    if (fault_ == Fault::kNotAnswered) reply->no_answer = true;
    if (fault_ == Fault::kCut && !reply->body.empty()) reply->cut_body_after = reply->body.size() / 2;
  }

 private:
  enum class Fault { kSlowDown, kNotAnswered, kCut, kInternal, kClosed, kNone };
  static constexpr int kFaults = static_cast<int>(Fault::kNone);

  const int every_;
  int requests_ = 0;
  int next_ = 0;
  Fault fault_ = Fault::kNone;
};

int Serve(FakeS3::Kind kind, int every) {
  Faults faults(every);
  FakeS3 s3(kind);
  s3.SetBefore([&](const ServerRequest& request) { return faults.Before(request); });
  s3.SetAfter([&](const ServerRequest& request, ServerReply* reply) { faults.After(request, reply); });
  const SigningKeys keys = s3.keys();
  fmt::print(R"({{"url": "{}", "access_key": "{}", "secret_key": "{}", "region": "{}"}})"
             "\n",
             s3.Url(), keys.access_key, keys.secret_key, keys.region);
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  for (const std::string& leak : s3.leaks()) fmt::print(stderr, "sent to the second host: {}\n", leak);
  return s3.leaks().empty() ? 0 : 1;
}

}  // namespace
}  // namespace weightwire::testing

int main(int argc, char** argv) {
  using weightwire::testing::FakeS3;
  const std::string_view kind = argc > 1 ? argv[1] : "";
  if (kind != "plain" && kind != "hf") {
    std::fprintf(stderr, "usage: misbehaving_s3 plain|hf [N]\n");
    return 2;
  }
  return weightwire::testing::Serve(kind == "hf" ? FakeS3::Kind::kHuggingFace : FakeS3::Kind::kPlain,
                                    argc > 2 ? std::atoi(argv[2]) : 0);
}
