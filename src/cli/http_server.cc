#include "cli/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/signals_blocked.h"
#include "cli/policy.h"

namespace weightwire {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

// A connection as httplib reads and writes it. It fails at the end of its time, after too many bytes, and as soon as
// `stop` becomes readable.
class LimitedStream final : public httplib::Stream {
 public:
  LimitedStream(int socket, int stop) : socket_(socket), stop_(stop) {}

  [[nodiscard]] bool is_readable() const override { return WaitFor(POLLIN); }
  [[nodiscard]] bool is_writable() const override { return WaitFor(POLLOUT); }

  ssize_t read(char* to, std::size_t size) override {
    const std::size_t allowed = std::min(size, kMaxServerRequestBytes - received_);
    if (allowed == 0 || !WaitFor(POLLIN)) return -1;
    const ssize_t count = ::recv(socket_, to, allowed, 0);
    if (count > 0) received_ += static_cast<std::size_t>(count);
    return count;
  }

  ssize_t write(const char* from, std::size_t size) override {
    if (!WaitFor(POLLOUT)) return -1;
    return ::send(socket_, from, size, MSG_NOSIGNAL);
  }

  // Nothing here looks at who asks.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  // httplib must not wait for the socket on its own.
  [[nodiscard]] socket_t socket() const override { return -1; }

 private:
  [[nodiscard]] bool WaitFor(short event) const {
    std::array<pollfd, 2> ends = {{{socket_, event, 0}, {stop_, POLLIN, 0}}};
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - SteadyClock::now());
      if (left.count() <= 0) return false;
      const int ready = ::poll(ends.data(), ends.size(), static_cast<int>(left.count()));
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0 && ends[1].revents == 0;
    }
  }

  const int socket_;
  const int stop_;
  const SteadyClock::time_point end_ = SteadyClock::now() + kServerConnectionTime;
  std::size_t received_ = 0;
};

// httplib's parser and routes, without its sockets and threads: those wait for slow clients without an end.
class Router final : public httplib::Server {
 public:
  explicit Router(HttpServer::Page page) {
    set_payload_max_length(kMaxServerRequestBytes);
    // Not Get(), which takes a regular expression.
    set_pre_routing_handler([page = std::move(page)](const httplib::Request& request, httplib::Response& response) {
      const bool is_read = request.method == "GET" || request.method == "HEAD";
      if (is_read && request.path == page.path) {
        response.set_content(page.body(), page.content_type.c_str());
        response.status = 200;
      } else {
        response.set_content("not found\n", "text/plain");
        response.status = 404;
      }
      return HandlerResponse::Handled;
    });
  }

  // Answers one request.
  void Answer(httplib::Stream& stream) {
    bool is_closed = false;
    process_request(stream, /*close_connection=*/true, is_closed, nullptr);
  }
};

Error CannotListen(const ListenAddress& address, int error) {
  const ErrorCode code = error == EADDRINUSE                 ? ErrorCode::kUnavailable
                         : error == EACCES || error == EPERM ? ErrorCode::kIo
                         : error == EADDRNOTAVAIL            ? ErrorCode::kInvalidArgument
                                                             : ErrorCode::kIo;
  const char* const what = error == EADDRINUSE ? "; give another port, or end the process that has it" : "";
  return {code, fmt::format("cannot listen at {}: {}{}", TextOf(address), std::strerror(error), what)};
}

// Sets the port to the one that the socket has.
void ReadPort(int socket, ListenAddress& address) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  std::array<char, NI_MAXSERV> port{};
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return;
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV) !=
      0) {
    return;
  }
  address.port = static_cast<std::uint16_t>(std::strtoul(port.data(), nullptr, 10));
}

Result<Descriptor> Listen(ListenAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int failed = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); failed != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot listen at {}: {}", TextOf(address), ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Descriptor listener(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol));
    // So that a restart can listen while the kernel still remembers connections of the process before. Unlike
    // SO_REUSEPORT, it lets no two processes have the port.
    const int yes = 1;
    if (listener.is_open() && ::setsockopt(listener.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        ::bind(listener.number(), one->ai_addr, one->ai_addrlen) == 0 &&
        ::listen(listener.number(), kServerBacklog) == 0) {
      ReadPort(listener.number(), address);
      return listener;
    }
    error = errno;
  }
  return CannotListen(address, error);
}

}  // namespace

// The listening socket, and the threads that take connections from it.
class HttpServer::Connections {
 public:
  Connections(ListenAddress address, Page page, Descriptor listener, Descriptor stop)
      : address_(std::move(address)), router_(std::move(page)), listener_(std::move(listener)), stop_(std::move(stop)) {
    const SignalsBlocked signals;
    for (std::size_t i = 0; i < kServerThreads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Connections() {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(stop_.number(), &one, sizeof(one)));
    for (std::thread& thread : threads_) thread.join();
  }
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  [[nodiscard]] const ListenAddress& address() const { return address_; }

 private:
  void Work() {
    std::array<pollfd, 2> ends = {{{listener_.number(), POLLIN, 0}, {stop_.number(), POLLIN, 0}}};
    for (;;) {
      const int ready = ::poll(ends.data(), ends.size(), -1);
      if (ends[1].revents != 0) return;
      if (ready <= 0) continue;
      // The other thread may have taken it.
      const Descriptor socket(::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.is_open()) {
        LimitedStream stream(socket.number(), stop_.number());
        router_.Answer(stream);
      } else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
        // No descriptor or memory is left. The connection would wake the thread again at once.
        static_cast<void>(::poll(&ends[1], 1, static_cast<int>(kServerErrorPause.count())));
      }
    }
  }

  const ListenAddress address_;
  Router router_;
  const Descriptor listener_;
  const Descriptor stop_;  // readable once the server ends
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(std::unique_ptr<Connections> connections) : connections_(std::move(connections)) {}
HttpServer::~HttpServer() = default;

const ListenAddress& HttpServer::address() const { return connections_->address(); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const ListenAddress& address, Page page) {
  ListenAddress bound = address;
  WW_TRY(Descriptor listener, Listen(bound));
  Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.is_open()) return CannotListen(address, errno);
  auto connections = std::make_unique<Connections>(bound, std::move(page), std::move(listener), std::move(stop));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(connections)));
}

}  // namespace weightwire
