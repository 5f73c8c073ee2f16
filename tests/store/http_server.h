// A small HTTP/1.1 server on a real socket of this machine, which can misbehave on demand.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace weightwire::testing {

struct ServerRequest {
  std::string method;
  std::string path;                            // as sent, still encoded
  std::string query;                           // as sent, without "?"
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;

  [[nodiscard]] std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct ServerReply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;

  // Misbehaviour.
  bool no_answer = false;                       // closes the connection instead
  bool never = false;                           // neither answers nor closes, until the server stops
  bool trickle = false;                         // one byte of the body every few milliseconds
  std::optional<std::size_t> cut_body_after;    // closes the connection in the body
  std::optional<std::uint64_t> claimed_length;  // Content-Length
};

class HttpServer {
 public:
  using Handler = std::function<ServerReply(const ServerRequest&)>;

  // The handler is called by one thread at a time.
  explicit HttpServer(Handler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  // Closes all connections.
  ~HttpServer();

  [[nodiscard]] std::string Url() const { return "http://" + Host(); }
  [[nodiscard]] std::string Host() const { return "127.0.0.1:" + std::to_string(port_); }

  // Closes all connections that are open now, as a server does with idle ones.
  void CloseConnections();

 private:
  void Accept();
  void Serve(int socket);
  // False when the connection is to be closed.
  bool Answer(int socket, const ServerRequest& request);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::mutex handler_mutex_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;                 // guarded by mutex_
  std::list<int> sockets_;            // guarded by mutex_
  std::vector<std::thread> threads_;  // guarded by mutex_
  std::thread acceptor_;
};

}  // namespace weightwire::testing
