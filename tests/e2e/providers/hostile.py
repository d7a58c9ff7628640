"""An OpenID provider that lies on request: hostile.py PORT FOLDER. What it does is read from FOLDER/lie each time."""

import base64
import hashlib
import hmac
import http.server
import json
import os
import subprocess
import sys
import time
import urllib.parse

PORT, FOLDER = int(sys.argv[1]), sys.argv[2]
ISSUER = f"http://127.0.0.1:{PORT}"


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, data=None):
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout


def key(name):
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", path)
    return path


def modulus(name):
    return bytes.fromhex(openssl("rsa", "-in", key(name), "-noout", "-modulus").decode().strip().split("=")[1])


def jwk(name, kid):
    return {"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": b64(modulus(name)), "e": "AQAB"}


def token(lie, nonce):
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "met", "exp": now + 300, "iat": now, "nonce": nonce, "sub": "7", "preferred_username": "ada"}
    header = {"alg": "RS256", "kid": "one"}
    claims.update(lie.get("claims", {}))
    claims = {name: value for name, value in claims.items() if value is not None}
    header.update(lie.get("header", {}))
    if "expired" in lie:
        claims["exp"] = now - 3600
    message = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    if lie.get("unsigned"):
        signature = b""
    elif header["alg"] == "HS256":
        public = openssl("rsa", "-in", key("one.pem"), "-pubout")
        signature = hmac.new(public, message.encode(), hashlib.sha256).digest()
    else:
        signature = openssl("dgst", "-sha256", "-sign", key(lie.get("key", "one.pem")), data=message.encode())
    return f"{message}.{b64(signature)}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    nonces = {}

    def log_message(self, *_):
        pass

    def reply(self, body, status=200):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def lie(self):
        with open(os.path.join(FOLDER, "lie")) as file:
            return json.load(file)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        lie = self.lie()
        if url.path == "/.well-known/openid-configuration":
            if lie.get("huge") == "description":
                return self.reply(b'{"issuer": "' + b"x" * (8 << 20) + b'"}')
            said = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth", "token_endpoint": f"{ISSUER}/token", "jwks_uri": f"{ISSUER}/keys"}
            said.update(lie.get("description", {}))
            return self.reply(said)
        if url.path == "/keys":
            if lie.get("huge") == "keys":
                return self.reply(b'{"keys": [' + b" " * (8 << 20) + b"]}")
            return self.reply({"keys": [jwk(name, kid) for name, kid in lie.get("keys", [["one.pem", "one"]])]})
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/auth":
            code = b64(os.urandom(9))
            Handler.nonces[code] = query["nonce"]
            back = {"code": code, "state": query["state"], **lie.get("answer", {})}
            self.send_response(302)
            self.send_header("Location", f"{query['redirect_uri']}?{urllib.parse.urlencode(back)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        return self.reply({}, 404)

    def do_POST(self):
        sent = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        lie = self.lie()
        if lie.get("huge") == "token":
            return self.reply(b'{"id_token": "' + b"x" * (8 << 20) + b'"}')
        if "status" in lie:
            return self.reply({"error": "<script>alert(1)</script>\u001b[31m"}, lie["status"])
        return self.reply({"access_token": "a", "token_type": "Bearer", "id_token": token(lie, Handler.nonces.get(sent.get("code"), ""))})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


for name in ("one.pem", "two.pem"):
    key(name)
server = Server(("127.0.0.1", PORT), Handler)
print("listening", flush=True)
server.serve_forever()
