#include "store/fake_s3.h"

#include <algorithm>
#include <ctime>
#include <set>

#include "base/sha256.h"

namespace weightwire::testing {
namespace {

// Few, so that lists of a few objects have pages.
constexpr std::size_t kPageEntries = 3;

std::string Decoded(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::map<std::string, std::string> ParseQuery(const std::string& query) {
  std::map<std::string, std::string> parsed;
  std::size_t start = 0;
  while (start < query.size()) {
    const std::size_t end = std::min(query.find('&', start), query.size());
    const std::string parameter = query.substr(start, end - start);
    const std::size_t equals = std::min(parameter.find('='), parameter.size());
    parsed[Decoded(parameter.substr(0, equals))] =
        equals < parameter.size() ? Decoded(parameter.substr(equals + 1)) : "";
    start = end + 1;
  }
  return parsed;
}

std::string Format(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof(text), format, &parts);
  return text;
}

std::string HttpNow() { return Format("%a, %d %b %Y %H:%M:%S GMT"); }

std::string Etag(const std::string& bytes) {
  return "\"" + ToHex(Sha256Of(std::string_view(bytes))).substr(0, 32) + "\"";
}

}  // namespace

ServerReply S3ErrorReply(int status, const std::string& code, const std::string& message) {
  ServerReply reply;
  reply.status = status;
  reply.headers["Content-Type"] = "application/xml";
  reply.body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" + code + "</Code><Message>" + message +
               "</Message><RequestId>1</RequestId></Error>";
  return reply;
}

FakeS3::FakeS3(Kind kind)
    : kind_(kind),
      cdn_(std::make_unique<HttpServer>([this](const ServerRequest& request) { return Cdn(request); })),
      server_(std::make_unique<HttpServer>([this](const ServerRequest& request) { return Handle(request); })) {}

void FakeS3::SetBefore(Before before) {
  const std::lock_guard lock(mutex_);
  before_ = std::move(before);
}

void FakeS3::SetAfter(After after) {
  const std::lock_guard lock(mutex_);
  after_ = std::move(after);
}

void FakeS3::SetKeys(const SigningKeys& keys) {
  const std::lock_guard lock(mutex_);
  keys_ = keys;
}

SigningKeys FakeS3::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

int FakeS3::requests() const {
  const std::lock_guard lock(mutex_);
  int sum = 0;
  for (const auto& [method, count] : requests_) sum += count;
  return sum;
}

int FakeS3::requests(const std::string& method) const {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(method);
  return found == requests_.end() ? 0 : found->second;
}

std::vector<std::string> FakeS3::leaks() const {
  const std::lock_guard lock(mutex_);
  return leaks_;
}

int FakeS3::unfinished_uploads() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(uploads_.size());
}

const Clock& FakeS3::clock() {
  static const SystemClock clock;
  return clock;
}

S3Options FakeS3::Options() const {
  const SigningKeys keys = this->keys();
  S3Options options;
  options.service.endpoint = kind_ == Kind::kHuggingFace ? Url() + "/owner" : Url();
  options.service.lists_by_folder = kind_ == Kind::kHuggingFace;
  options.bucket = "bucket";
  options.prefix = "run";
  options.name = "s3://bucket/run";
  options.credentials = std::make_shared<FixedCredentials>(
      Credentials{keys.access_key, Secret(keys.secret_key), Secret(keys.session_token), std::nullopt});
  return options;
}

std::unique_ptr<S3Store> FakeS3::Open() const { return std::make_unique<S3Store>(Options(), &clock()); }

ServerReply FakeS3::Handle(const ServerRequest& request) {
  const std::lock_guard lock(mutex_);
  ++requests_[request.method];
  std::optional<ServerReply> replaced = before_ ? before_(request) : std::nullopt;
  ServerReply reply = replaced ? *replaced : Do(request);
  reply.headers.try_emplace("Date", HttpNow());
  if (!replaced && after_) after_(request, &reply);
  return reply;
}

ServerReply FakeS3::Do(const ServerRequest& request) {
  if (const std::string fault = SignatureFault(request, keys_); !fault.empty()) {
    return S3ErrorReply(403, "SignatureDoesNotMatch", fault);
  }
  const std::string bucket = kind_ == Kind::kHuggingFace ? "/owner/bucket" : "/bucket";
  if (!request.path.starts_with(bucket)) return S3ErrorReply(404, "NoSuchBucket");
  if (kind_ == Kind::kHuggingFace) {
    for (const auto& [name, value] : request.headers) {
      if (name.starts_with("x-amz-meta-") || name == "x-amz-trailer" || value == "aws-chunked") {
        return S3ErrorReply(501, "NotImplemented", name);
      }
    }
    if (Decoded(request.path).find("//") != std::string::npos) return S3ErrorReply(400, "InvalidArgument", "//");
  }
  std::map<std::string, std::string> query = ParseQuery(request.query);
  const std::string key = request.path.size() > bucket.size() ? Decoded(request.path.substr(bucket.size() + 1)) : "";
  return key.empty() ? List(query) : DoObject(request, key, query);
}

void FakeS3::Store(const std::string& key, const std::string& bytes) {
  objects_[key] = {bytes, Format("%Y-%m-%dT%H:%M:%S.000Z"), HttpNow()};
}

ServerReply FakeS3::Content(const ServerRequest& request, const Object& object) {
  ServerReply reply;
  const std::string range = request.Header("range");
  reply.headers["Last-Modified"] = object.modified_http;
  if (range.empty()) {
    reply.body = object.bytes;
    return reply;
  }
  std::size_t first = 0;
  std::size_t last = 0;
  if (std::sscanf(range.c_str(), "bytes=%zu-%zu", &first, &last) != 2) return S3ErrorReply(400, "InvalidArgument");
  if (first >= object.bytes.size()) {
    ServerReply error = S3ErrorReply(416, "InvalidRange");
    error.headers["Content-Range"] = "bytes */" + std::to_string(object.bytes.size());
    return error;
  }
  last = std::min(last, object.bytes.size() - 1);
  reply.status = 206;
  reply.headers["Content-Range"] =
      "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + std::to_string(object.bytes.size());
  reply.body = object.bytes.substr(first, last - first + 1);
  return reply;
}

ServerReply FakeS3::DoObject(const ServerRequest& request, const std::string& key,
                             std::map<std::string, std::string>& query) {
  ServerReply reply;
  if (request.method == "POST" && query.contains("uploads")) {
    const std::string id = "2~up+load/" + std::to_string(next_upload_++);
    uploads_[id] = {key, {}};
    reply.body = "<InitiateMultipartUploadResult><UploadId>" + id + "</UploadId></InitiateMultipartUploadResult>";
    return reply;
  }
  if (query.contains("uploadId")) {
    const auto upload = uploads_.find(query["uploadId"]);
    if (upload == uploads_.end() || upload->second.key != key) return S3ErrorReply(404, "NoSuchUpload");
    if (request.method == "DELETE") {
      uploads_.erase(upload);
      reply.status = 204;
      return reply;
    }
    if (request.method == "PUT") {
      upload->second.parts[std::stoi(query["partNumber"])] = request.body;
      reply.headers["ETag"] = Etag(request.body);
      return reply;
    }
    std::string bytes;
    int expected = 1;
    for (const auto& [number, part] : upload->second.parts) {
      if (number != expected++ || request.body.find(Etag(part).substr(1, 32)) == std::string::npos) {
        return S3ErrorReply(400, "InvalidPart");
      }
      bytes += part;
    }
    Store(key, bytes);
    uploads_.erase(upload);
    reply.body = "<CompleteMultipartUploadResult><Key>x</Key></CompleteMultipartUploadResult>";
    return reply;
  }
  const auto found = objects_.find(key);
  if (request.method == "PUT") {
    if (request.Header("if-none-match") == "*" && found != objects_.end())
      return S3ErrorReply(412, "PreconditionFailed");
    Store(key, request.body);
    reply.headers["ETag"] = Etag(request.body);
    return reply;
  }
  if (request.method == "DELETE") {
    if (found != objects_.end()) objects_.erase(found);
    reply.status = 204;
    return reply;
  }
  if (found == objects_.end()) return S3ErrorReply(404, "NoSuchKey");
  if (request.method == "HEAD") {
    reply.headers["Content-Length"] = std::to_string(found->second.bytes.size());
    reply.headers["Last-Modified"] = found->second.modified_http;
    return reply;
  }
  if (kind_ == Kind::kHuggingFace) {
    reply.status = 302;
    reply.headers["Location"] = CdnUrl() + "/" + key + "?Signature=signedaddress";
    return reply;
  }
  return Content(request, found->second);
}

ServerReply FakeS3::Cdn(const ServerRequest& request) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, value] : request.headers) {
    if (name != "host" && name != "accept" && name != "range" && name != "user-agent") leaks_.push_back(name);
  }
  if (request.query != "Signature=signedaddress") return S3ErrorReply(403, "AccessDenied");
  const auto found = objects_.find(Decoded(request.path.substr(1)));
  return found == objects_.end() ? S3ErrorReply(404, "NoSuchKey") : Content(request, found->second);
}

ServerReply FakeS3::List(std::map<std::string, std::string>& query) {
  if (query["list-type"] != "2") return S3ErrorReply(501, "NotImplemented");
  const std::string delimiter = query["delimiter"];
  if (kind_ == Kind::kHuggingFace && delimiter != "/") return S3ErrorReply(501, "NotImplemented", "delimiter");
  const std::string prefix = query["prefix"];
  const std::string after = query["start-after"];
  const std::size_t limit = std::min<std::size_t>(kPageEntries, std::stoul(query["max-keys"]));
  std::string entries;
  std::set<std::string> folders;
  std::size_t count = 0;
  bool truncated = false;
  for (const auto& [key, object] : objects_) {
    if (!key.starts_with(prefix) || key <= after) continue;
    const std::size_t slash = delimiter.empty() ? std::string::npos : key.find(delimiter, prefix.size());
    const std::string folder = slash == std::string::npos ? "" : key.substr(0, slash + 1);
    if (!folder.empty() && folders.contains(folder)) continue;
    if (count == limit) {
      truncated = true;
      break;
    }
    ++count;
    if (folder.empty()) {
      entries += "<Contents><Key>" + key + "</Key><LastModified>" + object.modified_iso + "</LastModified><Size>" +
                 std::to_string(object.bytes.size()) + "</Size></Contents>";
    } else {
      folders.insert(folder);
      entries += "<CommonPrefixes><Prefix>" + folder + "</Prefix></CommonPrefixes>";
    }
  }
  ServerReply reply;
  reply.body =
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>" +
      std::string(truncated ? "true" : "false") + "</IsTruncated>" + entries + "</ListBucketResult>";
  return reply;
}

}  // namespace weightwire::testing
