"""A hostile browser, page, proxy or client at the listener of a server: nothing is shown that is not theirs, nothing breaks."""

import contextlib
import json
import os
import re
import resource
import socket
import urllib.parse

from harness import check, equal, eventually, test
from hostile import peak_bytes
from prometheus import HASH
from web_site import Browser, JOBS, Site

#: In every field that a user controls.
NASTY = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u202e\u001b[31m\u009b2J"
SECURE = {
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}


def raw(site, data, close=True):
    """All that is answered to these bytes."""
    with socket.create_connection(("127.0.0.1", site.port), 60) as client:
        with contextlib.suppress(OSError):
            client.sendall(data)
        if close:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                answer += chunk
        return answer.decode(errors="replace")


def is_alive(site):
    equal(Browser(site).get("/api/v1/jobs", token=site.operator).status, 200, "the server answers")


@test
def every_response_says_what_a_browser_may_do_with_it(world):
    with Site(world) as site:
        browser = Browser(site)
        paths = ("/login", "/logout", "/", "/jobs", "/metrics", "/api/v1/jobs", "/api/v1/nodes", "/nosuch", "/assets/nosuch", "/login/oidc", "/%2e%2e/etc/passwd")
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
            for path in paths:
                answer = browser.send(method, path)
                for name, value in SECURE.items():
                    equal(answer.headers.get(name), value, f"{name} of {method} {path}")
                policy = answer.headers.get("Content-Security-Policy") or ""
                check(policy.startswith("default-src 'none'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy, f"policy of {path}:", policy)
                check("no-store" in (answer.headers.get("Cache-Control") or ""), f"caching of {path}:", answer.headers)
                check("Access-Control-Allow-Origin" not in answer.headers, f"{path} is for this origin alone")


@test
def page_sizes_names_and_ids_are_checked_before_they_are_used(world):
    with Site(world) as site:
        browser = Browser(site)
        ask = lambda path: browser.get(path, token=site.operator)
        for limit in ("0", "-1", "99999999999999999999", "1e3", "NaN", "1;DROP TABLE job", "%00"):
            equal(ask(f"/api/v1/jobs?limit={urllib.parse.quote(limit)}").status, 400, f"limit={limit}")
        for search in ("after=x", "after=" + "A" * 5000, "state=nosuch", "since=yesterday'--", "nosuch=1", "limit=1&limit=2"):
            equal(ask(f"/api/v1/jobs?{search}").status, 400, search)
        for job in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "/etc/shadow", "slurm:../../x", "slurm:1;id", "a" * 4000, "<script>", "slurm:1%0d%0aX: y"):
            answer = ask(f"/api/v1/jobs/{urllib.parse.quote(job, safe='%')}")
            check(answer.status in (400, 404) and "root:" not in answer.text and "X" not in answer.headers, f"{job}:", answer.status, answer.text)
        for user in ("' OR 1=1 --", "%", "_", "ada' OR 'a'='a", "*"):
            equal(browser.names(site.operator, f"/api/v1/jobs?user={urllib.parse.quote(user)}"), [], f"user={user}")
        for part in ("card=../x", "event=../../etc/passwd", "details=x&card=y", "table=sqlite_master"):
            check(ask(f"/api/v1/jobs/slurm:1/series?{part}").status in (200, 400, 404), part)
        is_alive(site)


@test
def nasty_text_in_every_field_stays_text(world):
    jobs = JOBS[:3] + ((4, "ada", "private", NASTY.replace("\n", " ")),)
    with Site(world, jobs=jobs) as site:
        browser = Browser(site).log_in(token=site.enroll("ada"))
        answer = browser.get("/api/v1/jobs")
        check(answer.headers["Content-Type"].startswith("application/json"), "JSON is called so:", answer.headers)
        check("\u001b" not in answer.text, "control characters are escaped")
        (nasty,) = [job["job"]["name"] for job in json.loads(answer.text)["jobs"] if job["job"]["id"] == "4"]
        check("script" in nasty, "it is the name:", nasty)
        for next in (NASTY, "/" + NASTY, "javascript:alert(1)", "//evil.example/", "/\\evil.example", "https://evil.example", "/jobs\r\nX-Evil: 1"):
            page = Browser(site).get("/login?next=" + urllib.parse.quote(next))
            check("<script" not in page.text and "onerror" not in page.text and "\u001b" not in page.text and "evil" not in page.text, f"{next!r}:", page.text)
            token = site.enroll("ada")
            answer = Browser(site).post("/login", {"token": token, "next": next})
            check(re.fullmatch(r"/[!-~]*", answer.location) and not answer.location.startswith("//") and "\\" not in answer.location, f"{next!r} leads to", answer.location)
            check("X-Evil" not in answer.headers, "no header of others")
        wrong = Browser(site).post("/login", {"user": NASTY, "password": NASTY, "token": NASTY})
        check(wrong.status == 401 and "<script" not in wrong.text and "onerror" not in wrong.text, "a wrong login:", wrong.text)
        equal(Browser(site).get("/login?next=/&next=//evil").status, 200, "two of them")


@test
def pages_of_other_sites_write_and_log_in_nothing(world):
    with Site(world) as site:
        token = site.enroll("ada")
        for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"http://127.0.0.1:{site.port + 1}"}):
            answer = Browser(site).post("/login", {"token": token}, **headers)
            equal((answer.status, answer.headers.get("Set-Cookie")), (403, None), f"a login with {headers}")
        browser = Browser(site).log_in(token=token)
        csrf = browser.get("/logout").field("csrf")
        for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}):
            equal(browser.post("/logout", {"csrf": csrf}, **headers).status, 403, f"a logout with {headers}")
        for fields in ({}, {"csrf": ""}, {"csrf": csrf[:-1]}, {"csrf": csrf + "x"}):
            equal(browser.post("/logout", fields).status, 403, f"a logout with {fields}")
        equal(browser.send("POST", "/api/v1/ask", {"Content-Type": "text/plain"}, json.dumps("nodes")).status, 403, "a request in plain text by the cookie alone")
        equal(browser.send("POST", "/api/v1/ask", {"X-Met-Csrf": csrf}, json.dumps("nodes")).status, 200, "one by the page itself")
        own = f"http://127.0.0.1:{site.port}"
        equal(browser.post("/logout", {"csrf": csrf}, Origin=own, Sec_Fetch_Site="same-origin").status, 303, "by the page itself")


@test
def a_session_is_neither_planted_nor_guessed(world):
    with Site(world) as site:
        eve = Browser(site).log_in(token=site.enroll("eve"))
        victim = Browser(site)
        victim.cookies = dict(eve.cookies)
        victim.log_in(token=site.enroll("ada"))
        check(victim.cookies != eve.cookies, "a login has a new cookie")
        equal(eve.get("/api/v1/jobs").status, 401, "the planted session has ended")
        (name, value), = victim.cookies.items()
        for guess in ("", "x", value[:-1], value + "A", value.swapcase(), "../" + value, f'"{value}" ; x', "\x7f", "A" * 4097, ",".join([value] * 50)[:8000]):
            stranger = Browser(site)
            stranger.cookies = {name: guess}
            check(stranger.get("/api/v1/jobs").status in (400, 401, 431), f"{guess[:60]!r}")
        many = Browser(site).send("GET", "/api/v1/jobs", {"Cookie": "; ".join(f"{name}={n}" for n in range(500)) + f"; {name}={value}"})
        check(many.status in (401, 431), "beyond a few of one name nothing is looked at:", many.status)
        # The name of a header with a name is nobody's, unless a proxy is configured.
        for header in ("X-Grafana-User", "X-Remote-User", "X-Forwarded-User", "Remote-User", "X-Met-Proxy-Secret"):
            equal(Browser(site).send("GET", "/api/v1/jobs", {header: "chief"}).status, 401, header)


@test
def heads_that_are_no_heads_are_refused(world):
    with Site(world) as site:
        host = f"Host: 127.0.0.1:{site.port}\r\n"
        for head in (
            f"GET /login HTTP/1.1\r\n{host}X: a\r\n b\r\n\r\n", f"GET /login?next=/\r\nSet-Cookie: met=1 HTTP/1.1\r\n{host}\r\n", "GET /login HTTP/9.9\r\n\r\n",
            f"GET /login HTTP/1.1\r\n{host}" + "".join(f"X-{n}: y\r\n" for n in range(500)) + "\r\n", f"GET /login HTTP/1.1\r\n{host}Cookie: " + "a" * 100_000 + "\r\n\r\n",
            f"POST /login HTTP/1.1\r\n{host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/v1/jobs HTTP/1.1\r\n\r\n",
            f"POST /login HTTP/1.1\r\n{host}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", f"POST /login HTTP/1.1\r\n{host}Content-Length: -1\r\n\r\n",
            f"GET /\x00 HTTP/1.1\r\n{host}\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", f"GET /login HTTP/1.1\r\n{host}Authorization: Basic " + "A" * 10_000 + "\r\n\r\n",
        ):
            answer = raw(site, head.encode("latin-1"))
            statuses = set(re.findall(r"HTTP/1\.[01] (\d+)", answer))
            check(statuses <= {"200", "400", "401", "413", "415", "431", "505"}, f"{head[:60]!r}:", answer[:200])
            check("Set-Cookie: met=1" not in answer and '"jobs"' not in answer, f"{head[:60]!r}:", answer[:200])
        is_alive(site)


@test
def a_hundred_megabytes_cost_nothing(world):
    with Site(world) as site:
        before = peak_bytes(site.process.pid)
        token = site.enroll("ada")
        for path, authorization in (("/login", ""), ("/logout", ""), ("/api/v1/ask", f"Authorization: Bearer {token}\r\n"), ("/api/v1/jobs", ""), ("/nosuch", "")):
            with socket.create_connection(("127.0.0.1", site.port), 60) as client:
                client.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nContent-Type: application/x-www-form-urlencoded\r\n{authorization}Content-Length: {100 << 20}\r\n\r\n".encode())
                with contextlib.suppress(OSError):
                    for _ in range(100):
                        client.sendall(b"a=b&" * (1 << 18))
            is_alive(site)
        grown = peak_bytes(site.process.pid) - before
        check(grown < 48 << 20, f"memory grew by {grown >> 20} MiB")


@test
def a_thousand_idle_and_slow_connections_keep_nobody_out(world):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with Site(world) as site:
        with contextlib.ExitStack() as stack:
            for number in range(1000):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", site.port), 60))
                if number % 2:
                    client.sendall(f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nContent-Length: 100\r\n\r\na".encode())
            is_alive(site)
            Browser(site).log_in(token=site.enroll("ada"))
        is_alive(site)


@test
def logins_without_end_take_bounded_memory(world):
    with Site(world) as site:
        token, browser = site.enroll("ada"), Browser(site)
        first = Browser(site).log_in(token=token)
        other = Browser(site).log_in(token=site.enroll("bob"))
        for number in range(60):
            Browser(site).post("/login", {"token": token})
        equal(first.get("/api/v1/jobs").status, 401, "the oldest of many sessions has made room")
        equal(other.get("/api/v1/jobs").status, 200, "another person's has not")
        statuses = {Browser(site).post("/login", {"user": f"u{number}", "password": "x"}).status for number in range(60)}
        equal(statuses, {401, 429}, "guesses of one address")
        is_alive(site)


@test
def names_in_the_audit_log_and_the_log_command_no_terminal(world):
    site = Site(world)
    lines = os.path.join(world.root, "audit")
    web = site.path("web.yml", f"basic_auth_users: {{ann: {HASH}}}\n")
    site.text = site.text.replace("http:\n", f"http:\n  web_config: {web}\n") + f"login:\n  audit_file: {lines}\n"
    with site:
        for user in ("ann", "my-password-in-the-wrong-field", "\u001b[31mred", "a\nb", "\u202e"):
            Browser(site).post("/login", {"user": user, "password": "hunter2"})
        Browser(site).get("/api/v1/jobs?user=" + urllib.parse.quote("\u001b[31m\n\u202e"), token=site.operator)
        read = lambda: open(lines, "rb").read()
        eventually(lambda: b'"read"' in read(), "what the operator read")
        text = read()
        check(all(byte == 10 or 32 <= byte < 127 for byte in text), "only ASCII:", text)
        for line in text.splitlines():
            json.loads(line)
        check(b"hunter2" not in text and b"my-password" not in text and site.operator.encode() not in text, "no secrets:", text)
        check(b'"ann"' in text, "the name of a known user")
        log = world.log("server.log")
        check("\u001b" not in log.replace("\u001b[0m", "").replace("\u001b[2m", "").replace("\u001b[32m", "").replace("\u001b[33m", "") and "hunter2" not in log, "the log:", log)
