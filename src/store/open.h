// A store from what a person writes:
//   /path, path, file:///path                       a directory
//   s3://bucket/prefix?endpoint=…&region=…          S3, or a service that speaks its protocol. Endpoint and region also
//   come
//                                                   from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
//                                                   AWS_DEFAULT_REGION or the AWS profile. ?addressing=virtual puts the
//                                                   bucket into the host's name, ?addressing=path into the path.
//   hf://buckets/owner/name/prefix                  Hugging Face: by S3 keys that begin with HFAK, else by HF_TOKEN,
//                                                   which can only read, else as the public sees it
// AWS_CA_BUNDLE (or the profile's ca_bundle) names a file of CAs to trust; else the system's are (ca_file.h).
#pragma once

#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/environment.h"
#include "base/random.h"
#include "store/backends/s3_store.h"
#include "store/http/http.h"
#include "store/store.h"
#include "store/transfer.h"
#include "store/wrappers/limit_store.h"
#include "store/wrappers/retry_store.h"
#include "store/wrappers/trace_store.h"

namespace weightwire {

// Nothing here is owned; what is pointed to must outlive the store.
struct OpenOptions {
  Environment environment = SystemEnvironment();
  const Clock* clock = nullptr;
  // As the caller's; what the environment says about CAs comes on top.
  HttpOptions http;

  // --- of the wrappers ---
  Sleeper* sleeper = nullptr;
  Random* random = nullptr;  // used by this store alone
  RetryPolicy retry;
  StoreLimits limits;
  TransferOptions transfer;
  TraceStore::Sink trace;  // may be empty
};

// The back end itself, without wrappers. Nothing is asked of a service yet, except for credentials of hf://.
// kInvalidArgument when the URL is not understood.
Result<std::unique_ptr<Store>> OpenBackend(std::string_view url, const OpenOptions& options);

// What an s3:// URL and the environment come to, for whoever opens the store in another way. kInvalidArgument for any
// other URL.
Result<S3Options> S3OptionsOf(std::string_view url, const OpenOptions& options);

// The usual wrappers, from the inside: trace, so that every attempt is seen; limit; retry; parallel. `counts`, if
// given, is set to where requests are counted, which lives as long as the store.
std::unique_ptr<Store> WrapStore(std::unique_ptr<Store> backend, const OpenOptions& options,
                                 const TraceStore** counts = nullptr);

// Both at once.
Result<std::unique_ptr<Store>> OpenStore(std::string_view url, const OpenOptions& options,
                                         const TraceStore** counts = nullptr);

// Whether anybody can read the object without credentials. `key` is one that exists. A directory is not public.
Result<bool> IsPublic(std::string_view url, const OpenOptions& options, std::string_view key);

}  // namespace weightwire
