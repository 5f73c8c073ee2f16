"""Makes a bucket at a service that speaks S3: what weightwire leaves to others."""

import hashlib
import hmac
import urllib.request
from datetime import datetime, timezone


def make_bucket(endpoint, name, access_key, secret_key, region="us-east-1"):
    """One PUT, signed as S3 wants it (version 4)."""
    now = datetime.now(timezone.utc)
    day, moment = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    content = hashlib.sha256(b"").hexdigest()
    host = endpoint.removeprefix("http://")
    signed = "host;x-amz-content-sha256;x-amz-date"
    headers = f"host:{host}\nx-amz-content-sha256:{content}\nx-amz-date:{moment}\n"
    request = f"PUT\n/{name}\n\n{headers}\n{signed}\n{content}"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}"
    sent = {
        "x-amz-content-sha256": content,
        "x-amz-date": moment,
        "authorization": f"{credential}, SignedHeaders={signed}, Signature={key.hex()}",
    }
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", headers=sent, method="PUT"), timeout=30).close()
