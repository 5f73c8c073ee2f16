// A small HTTP server for what a running command tells other programs, such as its metrics.
//
// It must never stop the command that runs it. So it works on kServerThreads threads of its own, answers one request
// on each connection, ends a connection after kServerConnectionTime however slowly it sends, and reads at most
// kMaxServerRequestBytes of it. Connections beyond the threads wait in the kernel, and hold no descriptor here.
//
// Requests are parsed by cpp-httplib, which only http_server.cc includes, because it takes long to compile.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/listen_address.h"

namespace weightwire {

class HttpServer {
 public:
  struct Page {
    std::string path;          // "/metrics"; characters of regular expressions mean themselves
    std::string content_type;  // of its answer
    // Returns the body. Several threads may call it at a time.
    std::function<std::string()> body;
  };

  // Listens and answers GET and HEAD of `page`; 404 for everything else. Errors: kInvalidArgument if the host has no
  // address here, kUnavailable if another process has the port, kIo if only root may have it.
  static Result<std::unique_ptr<HttpServer>> Start(const ListenAddress& address, Page page);

  // Ends open connections and the threads, within milliseconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Where it listens, with the port that was chosen for port 0.
  [[nodiscard]] const ListenAddress& address() const;

 private:
  class Connections;
  explicit HttpServer(std::unique_ptr<Connections> connections);

  std::unique_ptr<Connections> connections_;
};

}  // namespace weightwire
