"""Visits pages with a real browser and says what it found, as JSON. Run by pages.py, with Playwright's python.

Read from stdin: {"link", "paths", "scheme", "width", "script", "axe", "folder", "task"}.
"""

import json
import os
import sys

from playwright.sync_api import sync_playwright

# Without these it looks for hosts that are not there.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
VIOLATIONS = "addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sourceFile + ':' + event.lineNumber));"
# Of a page: what is wider than the screen, and what a screen reader needs.
FACTS = """() => ({
  title: document.title,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  main: document.querySelectorAll('main').length,
  h1: document.querySelectorAll('h1').length,
  figures: document.querySelectorAll('figure.chart').length,
  svg: document.querySelectorAll('figure.chart .canvas > svg').length,
  canvas: document.querySelectorAll('figure.chart canvas').length,
  named: [...document.querySelectorAll('figure.chart .plot')].every((plot) => plot.getAttribute('aria-label').length > 20),
  text: document.body.innerText,
})"""


class Visit:
    def __init__(self, browser, asked):
        self.asked, self.problems, self.requests = asked, [], []
        self.context = browser.new_context(
            color_scheme=asked["scheme"], viewport={"width": asked["width"], "height": 900},
            java_script_enabled=asked["script"], locale="en-GB", timezone_id="Europe/Berlin", reduced_motion="reduce")
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.page.add_init_script(VIOLATIONS)
        self.page.on("console", lambda message: self.problems.append(f"console: {message.text}") if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def facts(self, address):
        before = len(self.problems)
        answer = self.page.goto(address, wait_until="load")
        if any(address.endswith(path) for path in self.asked.get("refused", [])):
            # A browser reports the refusal that is asked for.
            self.problems[before:] = [one for one in self.problems[before:] if "status of 400" not in one]
            if answer is None or answer.status != 400:
                self.problems.append(f"{address} is not refused")
        elif answer is not None and answer.status >= 400:
            self.problems.append(f"status {answer.status} of {address}")
        found = self.page.evaluate(FACTS)
        found["barriers"] = self.barriers()
        return found

    def barriers(self):
        if not self.asked.get("axe") or not self.asked["script"]:
            return []
        with open(self.asked["axe"], encoding="utf-8") as file:
            self.page.evaluate(file.read())
        found = self.page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
        bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        return [f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in bad]

    def shot(self, name):
        if self.asked.get("folder"):
            self.page.screenshot(path=os.path.join(self.asked["folder"], f"{name}.png"), full_page=True)


def log_in(page, asked):
    """With a token."""
    page.goto(asked["link"] + "login")
    page.fill("#token", asked["token"])
    page.locator("form:has(#token) button").click()
    page.wait_for_selector("h1")


def look(visit, asked):
    """Every page, one after the other."""
    if "token" in asked:
        log_in(visit.page, asked)
        base = asked["link"]
    else:
        visit.page.goto(asked["link"])
        base = visit.page.url
    pages = {}
    for path in asked["paths"]:
        pages[path] = visit.facts(base + path)
        kind = "dark" if asked["scheme"] == "dark" else "light"
        name = (path.split("?")[0].replace("/", "-") or "now") + ("-zoom" if "from=" in path else "")
        visit.shot(f"{name}-{kind}-{asked['width']}{'' if asked['script'] else '-noscript'}")
    return {"base": base, "pages": pages}


def keyboard(visit, asked):
    """From the address bar to a job, by keys alone; the focus is seen at each step."""
    visit.page.goto(asked["link"])
    base = visit.page.url
    visit.page.goto(base + "jobs")
    focused = "() => { const on = document.activeElement; return { text: (on.innerText || on.name || on.tagName).slice(0, 80), seen: getComputedStyle(on).outlineStyle !== 'none', tag: on.tagName, href: on.href || '' }; }"
    steps = []
    for _ in range(80):
        visit.page.keyboard.press("Tab")
        steps.append(visit.page.evaluate(focused))
        if "/jobs/" in steps[-1]["href"]:
            break
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/jobs/*")
    visit.page.wait_for_load_state("load")
    return {"steps": steps, "title": visit.page.title()}


def live(visit, asked):
    """A page that is open: says when it is, and then waits for a text without being loaded again."""
    visit.page.goto(asked["link"])
    visit.page.evaluate("() => { window.same = 'yes'; }")
    print("ready", flush=True)
    visit.page.wait_for_selector(f"text={asked['text']}", timeout=asked["patience_s"] * 1000)
    return {"same": visit.page.evaluate("() => window.same")}


def steady(visit, asked):
    """A page that is scrolled and has the focus in a row: jobs start meanwhile, and nothing jumps."""
    page = visit.page
    page.goto(asked["link"])
    page.goto(page.url + asked["path"])
    page.set_viewport_size({"width": asked["width"], "height": 500})
    row = page.locator(f"a:has-text('{asked['held']}')").first
    row.focus()
    place = f"""() => {{ const link = [...document.querySelectorAll('a')].find((one) => one.innerText === {json.dumps(asked['held'])});
        return {{ top: Math.round(link.getBoundingClientRect().top), scroll: scrollY, focused: document.activeElement.innerText, same: window.same || '' }}; }}"""
    page.evaluate("() => { window.same = 'yes'; }")
    page.evaluate("() => scrollTo(0, document.documentElement.scrollHeight)")
    before = page.evaluate(place)
    print("ready", flush=True)
    page.wait_for_selector(f"text={asked['text']}", timeout=asked["patience_s"] * 1000, state="attached")
    return {"before": before, "after": page.evaluate(place)}


def by_node(visit, asked):
    """Logs in with a token and looks at the charts of a job."""
    page = visit.page
    log_in(page, asked)
    found = visit.facts(asked["link"] + asked["path"])
    chart = page.locator("#chart-cpu-by-node")
    found["spoken"] = chart.locator(".plot").get_attribute("aria-label")
    found["legend"] = chart.locator(".legend li").all_inner_texts()
    found["drawn"] = chart.locator("canvas" if asked["script"] else ".canvas path.line").count()
    visit.shot("by-node")
    return {"pages": {"job": found}}


def follow(visit, asked):
    """Logs in, sees a job appear, opens it, filters by it, and takes its files."""
    page = visit.page
    page.goto(asked["link"])
    page.fill("#user", asked["user"])
    page.fill("#password", asked["password"])
    page.locator("form:has(#password) button").click()
    page.wait_for_selector("h1")
    page.goto(asked["link"])
    page.evaluate("() => { window.same = 'yes'; }")
    print("ready", flush=True)
    link = page.locator(f"#running a:has-text('{asked['text']}')").first
    link.wait_for(timeout=asked["patience_s"] * 1000)
    found = {"same": page.evaluate("() => window.same")}
    visit.shot("slurm-now")
    link.click()
    page.wait_for_url("**/jobs/*")
    found["title"] = page.title()
    with page.expect_download() as download:
        page.locator("a:has-text('HTML file')").click()
    with open(download.value.path(), encoding="utf-8") as file:
        found["html"] = file.read()
    page.goto(asked["link"] + "jobs")
    page.fill("#filter [name=name]", asked["text"])
    page.locator("#filter button[type=submit]").first.click()
    page.wait_for_url("**name=*")
    found["listed"] = page.locator("#jobs tbody tr").count()
    address = page.locator("a:has-text('CSV')").first.get_attribute("href")
    found["csv"] = page.context.request.get(asked["link"].rstrip("/") + address).text()
    return found


def alone(visit, asked):
    """A file without a server."""
    found = visit.facts(asked["link"])
    visit.shot(f"file-{asked['scheme']}-{asked['width']}")
    return {"pages": {"file": found}}


def zoom(visit, asked):
    """Drags over a chart: the address holds the time, and back leads to the whole."""
    visit.page.goto(asked["link"])
    before = visit.page.url
    visit.page.wait_for_selector("figure.chart canvas")
    box = visit.page.locator("figure.chart .u-over").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    visit.page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + box["width"] * 0.7, middle, steps=5)
    reading = visit.page.locator("figure.chart .reading").first.inner_text()
    visit.page.mouse.up()
    visit.page.wait_for_url("**from=*")
    zoomed = visit.page.url
    visit.page.go_back()
    visit.page.wait_for_url(lambda url: "from=" not in url)
    return {"before": before, "zoomed": zoomed, "after": visit.page.url, "reading": reading}


def main():
    asked = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        visit = Visit(browser, asked)
        found = {"look": look, "keyboard": keyboard, "live": live, "alone": alone, "follow": follow, "zoom": zoom, "steady": steady, "by_node": by_node}[asked["task"]](visit, asked)
        found["problems"], found["requests"] = visit.problems, visit.requests
        browser.close()
    print(json.dumps(found))


main()
