// A service that speaks S3, strictly, on a socket of this machine: every signature is checked. It misbehaves when a
// test tells it to, and can have all the peculiarities of Hugging Face's gateway.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/backends/s3_store.h"
#include "store/credentials/credentials.h"
#include "store/http_server.h"
#include "store/sigv4_check.h"

namespace weightwire::testing {

class FakeS3 {
 public:
  enum class Kind { kPlain, kHuggingFace };

  explicit FakeS3(Kind kind = Kind::kPlain);

  // Called for each request before it is done; an answer replaces doing it.
  using Before = std::function<std::optional<ServerReply>(const ServerRequest&)>;
  // Called after it was done; may change the answer.
  using After = std::function<void(const ServerRequest&, ServerReply*)>;
  void SetBefore(Before before);
  void SetAfter(After after);

  // For a store on the bucket "bucket" with the run at "run".
  [[nodiscard]] S3Options Options() const;
  [[nodiscard]] std::unique_ptr<S3Store> Open() const;

  void SetKeys(const SigningKeys& keys);
  [[nodiscard]] SigningKeys keys() const;
  // How many requests came so far, all and of one method.
  [[nodiscard]] int requests() const;
  [[nodiscard]] int requests(const std::string& method) const;
  // Requests at the second host, where reads are redirected to, and what they brought that they should not have.
  [[nodiscard]] std::vector<std::string> leaks() const;
  [[nodiscard]] int unfinished_uploads() const;
  void CloseConnections() { server_->CloseConnections(); }
  [[nodiscard]] std::string Url() const { return server_->Url(); }
  [[nodiscard]] std::string CdnUrl() const { return cdn_->Url(); }

  static const Clock& clock();

 private:
  struct Object {
    std::string bytes;
    std::string modified_iso;
    std::string modified_http;
  };
  struct Parts {
    std::string key;
    std::map<int, std::string> parts;
  };

  ServerReply Handle(const ServerRequest& request);
  ServerReply Do(const ServerRequest& request);
  ServerReply DoObject(const ServerRequest& request, const std::string& key, std::map<std::string, std::string>& query);
  ServerReply List(std::map<std::string, std::string>& query);
  ServerReply Cdn(const ServerRequest& request);
  static ServerReply Content(const ServerRequest& request, const Object& object);
  void Store(const std::string& key, const std::string& bytes);

  const Kind kind_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Before before_;
  After after_;
  SigningKeys keys_{"HFAKtestaccess", "secret/with+odd=characters", "", "us-east-1"};
  std::map<std::string, Object> objects_;
  std::map<std::string, Parts> uploads_;
  int next_upload_ = 1;
  std::map<std::string, int> requests_;
  std::vector<std::string> leaks_;
  // Last, so that they stop first.
  std::unique_ptr<HttpServer> cdn_;
  std::unique_ptr<HttpServer> server_;
};

// An error as S3 writes it.
ServerReply S3ErrorReply(int status, const std::string& code, const std::string& message = "said so");

}  // namespace weightwire::testing
