"""Logins: who sees what, by token, password, reverse proxy and OpenID provider, on a real server and a real daemon."""

import contextlib
import http.client
import http.cookiejar
import json
import os
import pwd
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

from harness import Skip, check, each, equal, eventually, need_root, test
from prometheus import HASH, free_port
from web_site import Browser, Site

HERE = os.path.dirname(os.path.abspath(__file__))
PHYSICS = ["collide", "detect"]
EVERYTHING = ["collide", "detect", "thesis", "titrate"]
SECRET = "0123456789abcdef0123456789abcdef"


def audit(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def noted(path, **wanted):
    """Waits for a line of the audit log with these values."""
    fits = lambda line: all(line.get(name) == value for name, value in wanted.items())
    eventually(lambda: any(fits(line) for line in audit(path)), f"{wanted} in the audit log")


@test
def users_see_their_jobs_members_their_accounts_and_operators_all(world):
    site = Site(world)
    members = site.path("accounts", "physics: ada, bob\nempty: eve\n")
    site.text += f"server:\n  accounts_file: {members}\n"
    with site:
        browser = Browser(site)
        ada, bob, eve, zoe = (site.enroll(name) for name in ("ada", "bob", "eve", "zoe"))
        equal(browser.names(ada), [*PHYSICS, "thesis"], "ada's and her account's")
        equal(browser.names(bob), PHYSICS, "bob's and his account's")
        equal(browser.names(eve), ["titrate"], "eve's, whose account has no jobs")
        equal(browser.names(zoe), [], "of one who has none")
        equal(browser.names(site.operator), EVERYTHING, "all")
        # Filters narrow the view and never widen it.
        for token, search, names in (
            (bob, "user=ada", ["collide"]), (bob, "user=eve", []), (bob, "account=private", []), (bob, "account=physics", PHYSICS),
            (eve, "user=ada", []), (eve, "account=physics", []), (eve, "name=collide", []), (eve, "user=eve&account=chemistry", ["titrate"]),
        ):
            equal(browser.names(token, f"/api/v1/jobs?{search}"), names, search)
        # A page holds only what is theirs, and its end tells nothing of the rest.
        page = browser.get("/api/v1/jobs?limit=2", token=eve).json()
        equal((len(page["jobs"]), page["next"]), (1, None), "jobs and what follows")
        full = browser.get("/api/v1/jobs?limit=1", token=eve).json()
        rest = browser.get(f"/api/v1/jobs?limit=1&after={full['next']}", token=eve).json()
        equal((rest["jobs"], rest["next"]), ([], None), "what follows a full page")
        others = browser.get("/api/v1/jobs?limit=1", token=site.operator).json()["next"]
        check(set(browser.names(eve, f"/api/v1/jobs?after={others}")) <= {"titrate"}, "a cursor of another viewer opens nothing")
        for token, job, status in ((ada, 2, 200), (bob, 1, 200), (bob, 4, 404), (eve, 1, 404), (eve, 3, 200), (zoe, 3, 404)):
            for more in ("", "/series"):
                equal(browser.get(f"/api/v1/jobs/slurm:{job}{more}", token=token).status, status, f"job {job}{more}")
        missing, hidden = browser.get("/api/v1/jobs/slurm:4711", token=eve), browser.get("/api/v1/jobs/slurm:1", token=eve)
        equal(hidden.text.replace("slurm:1", "x"), missing.text.replace("slurm:4711", "x"), "what is hidden does not exist")
        # The same on the command line.
        os.makedirs(os.path.join(world.me.home, ".config", "met"), exist_ok=True)
        own = os.path.join(world.me.home, ".config", "met", "token")
        with open(own, "w") as file:
            file.write(bob + "\n")
        os.chmod(own, 0o600)
        listed = world.me.met("--server", f"http://127.0.0.1:{site.port}", "list", "--json").ok().json()
        equal(sorted(job["job"]["name"] for job in listed), PHYSICS, "on the command line")
        equal(world.me.met("token").ok().out.strip(), bob, "the token, for the login page")
        # Membership is read again; a file that is gone grants nothing.
        with open(members, "w") as file:
            file.write("physics: ada\nchemistry: bob\n")
        eventually(lambda: browser.names(bob) == ["detect", "titrate"], "bob's new account")
        os.unlink(members)
        eventually(lambda: browser.names(bob) == ["detect"], "bob's own jobs alone")


@test
def associations_of_the_scheduler_make_members(world):
    with Site(world, server="  accounts: slurm\n", members=r"physics|\nphysics|bob\nchemistry|bob\n|eve\n") as site:
        browser, bob, eve = Browser(site), site.enroll("bob"), site.enroll("eve")
        eventually(lambda: browser.names(bob) == [*PHYSICS, "titrate"], "bob's accounts")
        equal(browser.names(eve), ["titrate"], "eve's own")


@test
def met_token_says_how_to_get_one(world):
    world.me.met("token").refused("no token", "met server enroll --user")


@test
def a_token_begins_a_session_that_ends_with_it(world):
    site = Site(world)
    lines = os.path.join(world.root, "audit")
    site.text += f"login:\n  audit_file: {lines}\n"
    with site:
        token, browser = site.enroll("ada"), Browser(site)
        page = browser.get("/login?next=/jobs")
        check('name="token"' in page.text and 'name="password"' not in page.text, "what can be used is offered:", page.text)
        answer = browser.post("/login", {"token": token, "next": "/jobs?user=ada"})
        equal((answer.status, answer.location), (303, "/jobs?user=ada"), "status and place")
        cookie = answer.headers["Set-Cookie"]
        check(all(word in cookie for word in ("HttpOnly", "SameSite=Lax", "Path=/;")) and token not in cookie, "the cookie:", cookie)
        equal(browser.names(), ["collide", "thesis"], "with the cookie")
        check("ada" in browser.get("/login").text, "the page names who is logged in")
        # A second login elsewhere stays when this one ends.
        other = Browser(site).log_in(token=token)
        equal(browser.post("/logout").status, 403, "a write without the page's token")
        before = dict(browser.cookies)
        out = browser.post("/logout", {"csrf": browser.get("/logout").field("csrf")})
        equal((out.status, out.location, browser.cookies), (303, "/login", {}), "logged out")
        browser.cookies = before
        equal(browser.get("/api/v1/jobs").status, 401, "the cookie of a session that ended")
        equal(other.names(), ["collide", "thesis"], "the other session")
        world.me.met("server", "expel", "--user", "ada").ok()
        equal(other.get("/api/v1/jobs").status, 401, "a session whose token was revoked")
        wrong = browser.post("/login", {"token": "0" * 64})
        equal(wrong.status, 401, "an unknown token")
        check("Set-Cookie" not in wrong.headers, "no session")
        node = world.me.met("server", "enroll", "n9").ok().out.strip()
        equal(browser.post("/login", {"token": node}).status, 403, "a node is not a person")
        for wanted in ({"event": "login", "name": "ada", "by": "token"}, {"event": "logout", "name": "ada"}, {"event": "refused", "reason": "unknown token"}):
            noted(lines, **wanted)
        Browser(site).get("/api/v1/jobs/slurm:1", token=site.operator).json()
        noted(lines, event="read", name="chief", request="/api/v1/jobs/slurm:1")
        with open(lines) as file:
            text = file.read()
        check(token not in text and node not in text and not any(value in text for value in before.values()), "no secrets in the audit log")
        equal(os.stat(lines).st_mode & 0o777, 0o600, "mode of the audit log")


@test
def a_password_begins_a_session_that_ends_when_it_changes(world):
    site = Site(world)
    web = site.path("web.yml", f"basic_auth_users: {{ada: {HASH}, op: {HASH}}}\n")
    site.text = site.text.replace("http:\n", f"http:\n  web_config: {web}\n  operators: op\n")
    with site:
        ada, op = Browser(site), Browser(site)
        check('name="password"' in ada.get("/login").text, "the form")
        equal(ada.post("/login", {"user": "ada", "password": "wrong"}).status, 401, "a wrong password")
        ada.log_in(user="ada", password="secret")
        op.log_in(user="op", password="secret")
        equal(ada.names(), ["collide", "thesis"], "ada's")
        equal(op.names(), EVERYTHING, "an operator's")
        equal(Browser(site).names(login=("ada", "secret")), ["collide", "thesis"], "by a password in each request")
        with open(web, "w") as file:
            file.write(f"basic_auth_users: {{op: {HASH}}}\n")
        eventually(lambda: ada.get("/api/v1/jobs").status == 401, "ada's session has ended")
        equal(op.names(), EVERYTHING, "the operator's has not")
        guesses = [Browser(site).post("/login", {"user": "op", "password": f"guess{n}"}).status for n in range(12)]
        equal((guesses[0], guesses[-1]), (401, 429), "guesses")
        equal(op.names(), EVERYTHING, "who is logged in stays so")


@test
def under_tls_a_cookie_is_bound_to_this_host(world):
    site = Site(world)
    key, certificate = os.path.join(world.root, "key.pem"), os.path.join(world.root, "cert.pem")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate,
                           "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], capture_output=True, text=True)
    equal(made.returncode, 0, made.stderr)
    port, token = free_port(), None
    web = site.path("web.yml", f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n")
    with site:
        token = site.enroll("ada")
    world.configure(site.text.replace(f"127.0.0.1:{site.port}\n", f"127.0.0.1:{port}\n  web_config: {web}\n"))
    log = open(os.path.join(world.root, "server.log"), "ab")
    server = world.me.spawn("server", stdout=log, stderr=log)
    log.close()
    try:
        context = ssl.create_default_context(cafile=certificate)

        def send(method, path, body=None, **headers):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
            connection.request(method, path, body, headers)
            with connection.getresponse() as response:
                return response.status, response.headers, response.read().decode()

        def listens():
            with contextlib.suppress(OSError):
                return send("GET", "/login")[0] == 200

        eventually(listens, "the server listens")
        status, headers, _ = send("POST", "/login", f"token={token}", **{"Content-Type": "application/x-www-form-urlencoded"})
        cookie = headers["Set-Cookie"]
        check(status == 303 and cookie.startswith("__Host-met=") and "; Secure" in cookie and "; Path=/;" in cookie and "Domain" not in cookie, "the cookie:", cookie)
        own = cookie.split(";")[0]
        equal(send("GET", "/api/v1/jobs", Cookie=own)[0], 200, "with the cookie")
        equal(send("GET", "/api/v1/jobs", Cookie=own.replace("__Host-", ""))[0], 401, "under the name that a plain page could set")
    finally:
        server.terminate()
        server.wait(60)


@test
def a_reverse_proxy_names_users_over_its_own_socket(world):
    need_root()
    socket = os.path.join(world.root, "web.sock")
    with Site(world, http=f"  socket: {socket}\n  operators: op\n", login="  proxy_user: nobody\n") as site:
        os.chmod(world.root, 0o755)
        ask = ("import http.client, socket, sys\n"
               "c = http.client.HTTPConnection('localhost'); c.sock = socket.socket(socket.AF_UNIX); c.sock.connect(sys.argv[1])\n"
               "c.request('GET', '/api/v1/jobs', headers=dict(zip(sys.argv[2::2], sys.argv[3::2])))\n"
               "r = c.getresponse(); print(r.status, r.read().decode())")

        def asked(uid, *headers):
            user = world.user(uid)
            out = user.finish(user.start(world.python, "-S", "-E", "-c", ask, socket, *headers, cwd="/")).ok().out
            status, text = out.split(" ", 1)
            return int(status), sorted(job["job"]["name"] for job in json.loads(text).get("jobs", []))

        proxy, other = 65534, 1
        equal(asked(proxy, "X-Grafana-User", "ada"), (200, ["collide", "thesis"]), "by the proxy")
        equal(asked(proxy, "X-Grafana-User", "op"), (200, EVERYTHING), "an operator, by the proxy")
        equal(asked(proxy)[0], 401, "without a name")
        equal(asked(proxy, "X-Grafana-User", "")[0], 400, "with an empty one")
        equal(asked(other, "X-Grafana-User", "op")[0], 401, "by another user of this machine")
        equal(asked(0, "X-Grafana-User", "op")[0], 401, "by root, which is not the proxy")
        equal(Browser(site).get("/api/v1/jobs", X_Grafana_User="op").status, 401, "over the network")


@test
def a_reverse_proxy_names_users_with_a_secret(world):
    site = Site(world)
    secret = site.path("secret", SECRET + "\n")
    site.text += f"login:\n  proxy_header: X-Remote-User\n  proxy_secret_file: {secret}\n"
    with site:
        browser = Browser(site)
        equal(browser.names(X_Remote_User="ada", X_Met_Proxy_Secret=SECRET), ["collide", "thesis"], "with the secret")
        for headers in ({"X_Remote_User": "ada"}, {"X_Remote_User": "ada", "X_Met_Proxy_Secret": ""}, {"X_Remote_User": "ada", "X_Met_Proxy_Secret": SECRET[:-1]},
                        {"X_Grafana_User": "ada", "X_Met_Proxy_Secret": SECRET}):
            equal(browser.get("/api/v1/jobs", **headers).status, 401, f"with {headers}")


@each(empty=("", 0o600, "at least 16"), blank=("\n \n", 0o600, "at least 16"), short=("secret\n", 0o600, "at least 16"), public=(SECRET, 0o644, "chmod 600"))
def a_secret_that_is_none_stops_the_start(world, text, mode, words):
    site = Site(world)
    site.text += f"login:\n  proxy_secret_file: {site.path('secret', text, mode)}\n"
    site.refuses("login.proxy_secret_file", words)


@test
def failed_logins_are_in_the_audit_log_without_what_was_guessed(world):
    site = Site(world)
    lines, passwords = os.path.join(world.root, "audit"), site.path("web.yml", f"basic_auth_users:\n  ada: {HASH}\n")
    site.text = site.text.replace("http:\n", f"http:\n  web_config: {passwords}\n") + f"login:\n  audit_file: {lines}\n"
    with site:
        browser = Browser(site)
        guessed = "guessed-secret-of-somebody"
        equal(browser.get("/api/v1/jobs", login=("ada", guessed)).status, 401, "a wrong password")
        noted(lines, event="refused", name="ada", by="password", request="/api/v1/jobs", status=401, reason="wrong user or password")
        # A name that is not known may be a password in the wrong field.
        equal(browser.get("/metrics", login=(guessed, "x")).status, 401, "an unknown user")
        noted(lines, event="refused", by="password", request="/metrics")
        for path in ("/api/v1/jobs", "/jobs"):
            check(browser.get(path, token=guessed).status in (303, 401), "an unknown token")
            noted(lines, event="refused", by="token", request=path)
        # Many do not fill a disk.
        for number in range(60):
            browser.get(f"/api/v1/jobs/{number}", token=guessed)
        refused = [line for line in audit(lines) if line["event"] == "refused"]
        check(len(refused) < 60, "refusals that are written", len(refused))
        with open(lines) as file:
            check(guessed not in file.read(), "what was guessed is not in the audit log")
        for page in ("/usage", "/compare"):
            equal(browser.get(page, token=site.operator).status, 200, f"{page}: every page takes a token beside passwords")


@each(
    no_socket=("  proxy_user: root\n", "http.socket"), no_user=("  proxy_user: nosuchuser\n", "no user"),
    no_client=("  oidc_issuer: https://sso.example\n", "oidc_client_id"),
    no_address=("  oidc_issuer: https://sso.example\n  oidc_client_id: met\n", "public_url"),
    plain_provider=("  oidc_issuer: http://sso.example\n  oidc_client_id: met\n  public_url: https://met.example\n", "https"),
    bad_address=("  public_url: met.example\n", "public_url"),
    no_audit=("  audit_file: /nonexistent/audit\n", "audit_file"),
)
def a_login_that_cannot_work_stops_the_start(world, login, words):
    Site(world, http="  socket: /nonexistent/x\n" if words == "no user" else "", login=login).refuses(words)


@contextlib.contextmanager
def running(world, *command):
    """A provider, until the end of the block."""
    with open(os.path.join(world.root, "provider.log"), "ab") as log:
        process = world.me.start(*command, stdout=log, stderr=log)
    try:
        eventually(lambda: "listening" in world.log("provider.log") or check(process.poll() is None, "the provider ended:", world.log("provider.log")), "the provider listens")
        yield
    finally:
        process.terminate()
        process.wait(60)


def follow(opener, url):
    with opener.open(url, timeout=60) as answer:
        return answer.geturl(), answer.read().decode()


class Stop(urllib.request.HTTPRedirectHandler):
    """Follows redirections of the provider and stops at ours."""

    def __init__(self, own):
        self.own = own

    def redirect_request(self, request, file, code, message, headers, url):
        if url.startswith(self.own):
            raise Arrived(url)
        return super().redirect_request(request, file, code, message, headers, url)


class Arrived(Exception):
    pass


def at_provider(url, own, user):
    """Logs in at a real provider with its own forms; the address to which it returns."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()), Stop(own))
    try:
        place, page = follow(opener, url)
        for _ in range(4):
            action = re.search(r'<form[^>]*action="([^"]+)"', page).group(1)
            prompt = re.search(r'name="prompt" value="([^"]+)"', page).group(1)
            fields = {"prompt": prompt, "login": user, "password": "any"}
            with opener.open(urllib.parse.urljoin(place, action), urllib.parse.urlencode(fields).encode(), timeout=60) as answer:
                place, page = answer.geturl(), answer.read().decode()
    except Arrived as arrived:
        return str(arrived)
    raise AssertionError(f"the provider does not return: {page}")


def oidc_site(world, issuer, more=""):
    site = Site(world)
    site.own = f"http://127.0.0.1:{site.port}"
    site.lines = os.path.join(world.root, "audit")
    site.text += f"login:\n  public_url: {site.own}\n  oidc_issuer: {issuer}\n  audit_file: {site.lines}\n{more}"
    return site


@each(rs256=("met", True), es256=("met-ec", False))
def a_real_provider_logs_people_in(world, client, has_secret):
    found = subprocess.run([os.path.join(HERE, "node-packages")], capture_output=True, text=True)
    if found.returncode:
        raise Skip(found.stdout.strip() or found.stderr.strip())
    folder, port = found.stdout.strip(), free_port()
    site = oidc_site(world, f"http://127.0.0.1:{port}", f"  oidc_client_id: {client}\n")
    if has_secret:
        site.text += f"  oidc_client_secret_file: {site.path('client', 'a-secret-of-the-client:+%')}\n"
    with running(world, "node", os.path.join(HERE, "providers", "real.mjs"), folder, str(port), f"{site.own}/login/oidc/callback"), site:
        browser = Browser(site)
        check("/login/oidc?next=" in browser.get("/login").text, "it is offered")
        begun = browser.get("/login/oidc?next=/jobs")
        equal(begun.status, 303, "status")
        sent = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(begun.location).query))
        equal((sent["code_challenge_method"], sent["response_type"], sent["redirect_uri"]), ("S256", "code", f"{site.own}/login/oidc/callback"), "what is requested")
        back = at_provider(begun.location, site.own, "ada")
        path = back[len(site.own):]
        equal(Browser(site).get(path).status, 400, "in another browser")
        done = browser.get(path)
        equal((done.status, done.location), (303, "/jobs"), f"status and place, of {done.text}")
        equal(browser.names(), ["collide", "thesis"], "ada's jobs")
        check("ada" in browser.get("/login").text, "the page names her")
        noted(site.lines, event="login", name="ada", by="oidc")
        # The code and the state were used.
        check(browser.get(path).status in (400, 502), "the same answer once more")
        equal(Browser(site).names(site.operator), EVERYTHING, "tokens go on working")


@test
def a_provider_that_lies_logs_nobody_in(world):
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    site = oidc_site(world, issuer, "  oidc_client_id: met\n")
    lie = lambda **what: site.path("lie", json.dumps(what))
    lie()
    with running(world, sys.executable, os.path.join(HERE, "providers", "hostile.py"), str(port), world.root), site:
        def attempt(browser=None):
            browser = browser or Browser(site)
            begun = browser.get("/login/oidc?next=/jobs")
            if begun.status != 303:
                return begun, browser
            with contextlib.suppress(Arrived):
                follow(urllib.request.build_opener(Stop(site.own)), begun.location)
            try:
                follow(urllib.request.build_opener(Stop(site.own)), begun.location)
            except Arrived as arrived:
                return browser.get(str(arrived)[len(site.own):]), browser
            raise AssertionError("the provider does not return")

        # What it says of itself is fetched when it is first needed.
        for what in ({"description": {"issuer": "http://127.0.0.1:1"}}, {"description": {"authorization_endpoint": "javascript:alert(1)"}},
                     {"description": {"token_endpoint": "http://sso.example/token"}}, {"description": {"jwks_uri": None}}, {"huge": "description"}, {"huge": "keys"}):
            lie(**what)
            answer, browser = attempt()
            check(answer.status == 502 and "javascript:" not in answer.text and len(answer.text) < 4000, f"{what}:", answer.status, answer.text)
        lie()
        answer, browser = attempt()
        equal(answer.status, 303, f"the truth, of {answer.text}")
        equal(browser.names(), ["collide", "thesis"], "ada's jobs")
        for name, what, reason in (
            ("issuer", {"claims": {"iss": "http://127.0.0.1:1"}}, "another issuer"),
            ("audience", {"claims": {"aud": "other"}}, "another client"),
            ("audiences", {"claims": {"aud": ["met", "other"]}}, "another client"),
            ("presenter", {"claims": {"azp": "other"}}, "another client"),
            ("nonce", {"claims": {"nonce": "replayed"}}, "another login"),
            ("no nonce", {"claims": {"nonce": None}}, "another login"),
            ("none", {"header": {"alg": "none"}, "unsigned": True}, "not signed"),
            ("HS256", {"header": {"alg": "HS256"}}, "not signed"),
            ("unsigned", {"unsigned": True}, "signature"),
            ("other key", {"key": "two.pem"}, "signature"),
            ("unknown kid", {"header": {"kid": "three"}}, "does not publish"),
            ("no kid", {"header": {"kid": None}}, "does not publish"),
            ("expired", {"expired": True}, "expired"),
            ("future", {"claims": {"iat": 99999999999}}, "future"),
            ("no claim", {"claims": {"preferred_username": None}}, "preferred_username"),
            ("strange name", {"claims": {"preferred_username": "ada\u202e\n<b>"}}, "preferred_username"),
            ("a list", {"claims": {"preferred_username": ["ada"]}}, "preferred_username"),
            ("huge", {"huge": "token"}, "login failed"),
            ("refusal", {"status": 400}, "400"),
            ("redirection", {"status": 302}, "302"),
            ("other provider", {"answer": {"iss": "http://127.0.0.1:1"}}, "another provider"),
            ("error", {"answer": {"error": "<script>"}}, "says"),
        ):
            lie(**what)
            answer, browser = attempt()
            check(answer.status == 502 and reason in answer.text, f"{name}:", answer.status, answer.text)
            check("<script" not in answer.text and "\u001b" not in answer.text, "text stays text:", answer.text)
            equal(browser.get("/api/v1/jobs").status, 401, f"{name}: nobody is logged in")
        # An answer without the cookie of its beginning, or with another state.
        lie()
        equal(Browser(site).get("/login/oidc/callback?code=x&state=y").status, 400, "an answer out of nowhere")
        lie(answer={"state": "other"})
        equal(attempt()[0].status, 400, "another state")
        # A name in another case is another person.
        lie(claims={"preferred_username": "Ada"})
        answer, browser = attempt()
        equal((answer.status, browser.names()), (303, []), "Ada is not ada")


@test
def a_local_user_sees_their_own_jobs_on_a_daemon(world):
    need_root()
    name = pwd.getpwuid(65534).pw_name
    web, port = os.path.join(world.root, "web.yml"), free_port()
    with open(web, "w") as file:
        file.write(f"basic_auth_users: {{{name}: {HASH}, ann: {HASH}, nosuchuser: {HASH}}}\n")
    world.configure(f"http:\n  listen: 127.0.0.1:{port}\n  web_config: {web}\n  operators: ann\nlogin:\n  local_users: yes\n")
    world.start_system_daemon()
    someone = world.someone()
    someone.run_to_end("true", options=("--name", "theirs"))
    world.me.run_to_end("true", options=("--name", "roots"))

    class Daemon:
        pass

    site = Daemon()
    site.port = port
    user, operator = Browser(site).log_in(user=name, password="secret"), Browser(site).log_in(user="ann", password="secret")
    equal(user.names(), ["theirs"], "the user's")
    equal(operator.names(), ["roots", "theirs"], "the operator's")
    roots = next(job["job"]["id"] for job in operator.get("/api/v1/jobs").json()["jobs"] if job["job"]["name"] == "roots")
    for path in (f"/api/v1/jobs/{roots}", f"/api/v1/jobs/{roots}/series", "/api/v1/jobs/roots"):
        equal(user.get(path).status, 404, path)
    equal(user.names(path="/api/v1/jobs?user=root"), [], "of root, as the user asks")
    equal([node["jobs"] for node in user.get("/api/v1/nodes").json()["nodes"]], [0], "running jobs")
    equal(Browser(site).post("/login", {"user": "nosuchuser", "password": "secret"}).status, 403, "no user of this machine")
    check('name="token"' not in user.get("/logout").text, "a daemon has no tokens")
