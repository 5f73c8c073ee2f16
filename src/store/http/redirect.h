// Reads that a service answers by naming another address (302), as those in front of a CDN do.
#pragma once

#include <string>

#include "store/http/http.h"

namespace weightwire {

// Goes on from `answer`, which came for `request`: as long as it is a redirect, asks at the address it names, with
// nothing but the request's range. Neither credentials nor any other header travel there, and never from https to http.
// The addresses are as good as credentials, so errors name hosts only. kCorrupt when it leads nowhere.
Result<HttpAnswer> FollowRedirects(HttpClient& http, const HttpRequest& request, HttpAnswer answer);

}  // namespace weightwire
