"""One address for several servers: each request goes to the next one, and to another if that one does not answer.

python -m wordle.balancer --port N URL URL …
"""

import argparse
import asyncio
import itertools
import time

import aiohttp
from aiohttp import web
from weightwire import UnavailableError
from weightwire.integrations._routes import error_answer
from weightwire.integrations._version_headers import VERSION_HEADER, VERSION_SPANS_HEADER

MOST_BYTES = 1 << 20
REST_SECONDS = 1.0  # a server that did not answer is left alone for so long, if there is another
PASSED_ON = ("content-type", VERSION_HEADER, VERSION_SPANS_HEADER)


class Balancer:
    def __init__(self, urls):
        self._urls = [url.rstrip("/") for url in urls]
        self._order = itertools.cycle(self._urls)
        self._resting = dict.fromkeys(self._urls, 0.0)
        self._session = None

    async def run(self, app):
        timeout = aiohttp.ClientTimeout(total=120, connect=5)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self._session:
            yield

    def _candidates(self):
        """All servers, beginning with the next; those that rest come last."""
        begin = self._urls.index(next(self._order))
        turned = self._urls[begin:] + self._urls[:begin]
        now = time.monotonic()
        return sorted(turned, key=lambda url: self._resting[url] > now)

    async def handle(self, request):
        body = await request.read()
        for url in self._candidates():
            try:
                async with self._session.request(
                    request.method,
                    url + request.path_qs,
                    data=body,
                    headers={"content-type": request.headers.get("content-type", "application/json")},
                ) as answer:
                    data = await answer.read()
                    if answer.status < 500:
                        headers = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
                        return web.Response(status=answer.status, body=data, headers=headers)
            except (aiohttp.ClientError, asyncio.TimeoutError):
                pass
            self._resting[url] = time.monotonic() + REST_SECONDS
        refused = error_answer(UnavailableError("no server answers; try again"))
        return web.json_response(refused.body, status=refused.status)


def make_app(urls):
    balancer = Balancer(urls)
    app = web.Application(client_max_size=MOST_BYTES)
    app.cleanup_ctx.append(balancer.run)
    app.router.add_route("*", "/{path:.*}", balancer.handle)
    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("urls", nargs="+")
    arguments = parser.parse_args()
    web.run_app(make_app(arguments.urls), host="127.0.0.1", port=arguments.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
