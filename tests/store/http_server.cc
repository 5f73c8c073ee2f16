#include "store/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>

namespace weightwire::testing {
namespace {

bool SendAll(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(socket, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Takes one request off the connection; `buffer` keeps what came after it.
bool ReadRequest(int socket, std::string* buffer, ServerRequest* request) {
  const auto more = [&] {
    char block[65536];
    const ssize_t got = ::recv(socket, block, sizeof(block), 0);
    if (got > 0) buffer->append(block, static_cast<std::size_t>(got));
    return got > 0;
  };
  std::size_t head_end = 0;
  while ((head_end = buffer->find("\r\n\r\n")) == std::string::npos) {
    if (!more()) return false;
  }
  const std::string head = buffer->substr(0, head_end + 2);
  buffer->erase(0, head_end + 4);
  std::size_t line_end = head.find("\r\n");
  const std::string first = head.substr(0, line_end);
  const std::size_t method_end = first.find(' ');
  const std::size_t target_end = first.find(' ', method_end + 1);
  if (method_end == std::string::npos || target_end == std::string::npos) return false;
  request->method = first.substr(0, method_end);
  const std::string target = first.substr(method_end + 1, target_end - method_end - 1);
  const std::size_t question = target.find('?');
  request->path = target.substr(0, question);
  request->query = question == std::string::npos ? "" : target.substr(question + 1);
  request->headers.clear();
  while (line_end + 2 < head.size()) {
    const std::size_t start = line_end + 2;
    line_end = head.find("\r\n", start);
    const std::string line = head.substr(start, line_end - start);
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(' ', colon + 1);
    request->headers[Lower(line.substr(0, colon))] = value == std::string::npos ? "" : line.substr(value);
  }
  const std::size_t length = std::strtoull(request->Header("content-length").c_str(), nullptr, 10);
  while (buffer->size() < length) {
    if (!more()) return false;
  }
  request->body = buffer->substr(0, length);
  buffer->erase(0, length);
  return true;
}

}  // namespace

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, generic, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, generic, &size) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  CloseConnections();
  for (std::thread& thread : threads_) thread.join();
  ::close(listener_);
}

void HttpServer::CloseConnections() {
  const std::lock_guard lock(mutex_);
  for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
}

void HttpServer::Accept() {
  while (true) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (stop_) {
      if (socket >= 0) ::close(socket);
      return;
    }
    if (socket < 0) continue;
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

void HttpServer::Serve(int socket) {
  std::string buffer;
  ServerRequest request;
  while (ReadRequest(socket, &buffer, &request) && Answer(socket, request)) {
  }
  const std::lock_guard lock(mutex_);
  sockets_.remove(socket);
  ::close(socket);
}

bool HttpServer::Answer(int socket, const ServerRequest& request) {
  ServerReply reply;
  {
    const std::lock_guard lock(handler_mutex_);
    reply = handler_(request);
  }
  if (reply.no_answer) return false;
  if (reply.never) {
    std::unique_lock lock(mutex_);
    stopped_.wait(lock, [this] { return stop_; });
    return false;
  }
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " Status\r\n";
  const bool has_length = reply.headers.contains("Content-Length");
  if (!has_length) {
    head += "Content-Length: " + std::to_string(reply.claimed_length.value_or(reply.body.size())) + "\r\n";
  }
  for (const auto& [name, value] : reply.headers) head.append(name).append(": ").append(value).append("\r\n");
  head += "\r\n";
  if (!SendAll(socket, head.data(), head.size())) return false;
  if (request.method == "HEAD") return true;
  if (reply.trickle) {
    for (const char byte : reply.body) {
      std::unique_lock lock(mutex_);
      if (stopped_.wait_for(lock, std::chrono::milliseconds(5), [this] { return stop_; })) return false;
      lock.unlock();
      if (!SendAll(socket, &byte, 1)) return false;
    }
    return true;
  }
  const std::size_t count = std::min(reply.body.size(), reply.cut_body_after.value_or(reply.body.size()));
  if (!SendAll(socket, reply.body.data(), count)) return false;
  return !reply.cut_body_after && (!reply.claimed_length || *reply.claimed_length == reply.body.size());
}

}  // namespace weightwire::testing
