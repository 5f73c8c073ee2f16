"""Requests to an S3 service that the command has no need of, such as making buckets: for tests, benchmarks, the demo.

python tools/s3_admin.py BUCKET        makes a bucket at the service that tests/store/with_rgw has started
"""

import hashlib
import hmac
import os
import sys
import urllib.request
from datetime import datetime, timezone


def administer(method: str, path: str, query: str = "", body: bytes = b"") -> None:
    """One request, signed as S3 wants it."""
    endpoint = os.environ["WW_TEST_S3_ENDPOINT"]
    access_key = os.environ["WW_TEST_S3_ACCESS_KEY"]
    secret_key = os.environ["WW_TEST_S3_SECRET_KEY"]
    now = datetime.now(timezone.utc)
    day, time = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    content = hashlib.sha256(body).hexdigest()
    host = endpoint.removeprefix("http://")
    signed = "host;x-amz-content-sha256;x-amz-date"
    headers = f"host:{host}\nx-amz-content-sha256:{content}\nx-amz-date:{time}\n"
    request = f"{method}\n/{path}\n{query}\n{headers}\n{signed}\n{content}"
    scope = f"{day}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    authorization = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
    url = f"{endpoint}/{path}" + (f"?{query}" if query else "")
    sent = {"x-amz-content-sha256": content, "x-amz-date": time, "Authorization": authorization}
    urllib.request.urlopen(urllib.request.Request(url, body, sent, method=method)).close()


if __name__ == "__main__":
    administer("PUT", sys.argv[1])
