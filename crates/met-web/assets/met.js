// The pages of met in a browser: times on the reader's clock, charts with a shared cursor and zoom, and parts that are
// fetched again while somebody looks at them. Everything works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("scripted");

  // ---- times on the reader's clock
  const two = (number) => String(number).padStart(2, "0");
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const dateOf = (time) => `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const clockOf = (time) => `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;

  function timeShort(time, now = new Date()) {
    if (dateOf(time) === dateOf(now)) return clockOf(time);
    if (time.getFullYear() !== now.getFullYear()) return dateOf(time);
    return `${MONTHS[time.getMonth()]} ${String(time.getDate()).padStart(2, "\u2007")} ${clockOf(time).slice(0, 5)}`;
  }

  function localise(within) {
    for (const element of within.querySelectorAll("time[data-time]")) {
      const time = new Date(element.dateTime);
      if (Number.isNaN(time.getTime())) continue;
      const long = `${dateOf(time)} ${clockOf(time)}`;
      const kind = element.dataset.time;
      const isSameDay = kind === "end" && dateOf(new Date(element.dataset.start)) === dateOf(time);
      if (kind === "short") element.textContent = timeShort(time);
      else element.textContent = isSameDay ? clockOf(time) : long;
      if (kind === "short") element.title = long;
    }
    const zone = within.querySelector("[data-zone]");
    if (zone) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "your time zone";
  }

  // ---- numbers as the server writes them
  function digits(value) {
    const size = Math.abs(value);
    if (size >= 99.95) return value.toFixed(0);
    if (size >= 9.995) return value.toFixed(1);
    return value.toFixed(2);
  }
  /** In the unit that `like` is written in: an axis has one. */
  function scaled(value, step, names, like = value) {
    let unit = 0;
    while (Math.abs(like) >= 999.5 && unit + 1 < names.length) {
      value /= step;
      like /= step;
      unit += 1;
    }
    return `${unit === 0 && step === 1024 ? value.toFixed(0) : digits(value)} ${names[unit]}`;
  }
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  const WRITE = {
    cores: (value) => digits(value).replace(/\.0+$/, ""),
    bytes: (value, like) => scaled(value, 1024, BYTES, like),
    bytes_per_second: (value, like) => `${scaled(value, 1024, BYTES, like)}/s`,
    percent: (value) => `${value < 0.1 ? (value * 100).toFixed(1) : (value * 100).toFixed(0)}%`,
    watts: (value, like) => scaled(value, 1000, ["W", "kW", "MW"], like),
    hertz: (value, like) => scaled(value, 1000, ["Hz", "kHz", "MHz", "GHz"], like),
    celsius: (value) => `${value.toFixed(0)} °C`,
    per_second: (value, like) => scaled(value, 1000, ["/s", "k/s", "M/s", "G/s", "T/s"], like),
  };

  // ---- charts
  let charts = [];
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function source(within) {
    const block = within.querySelector("#chart-data");
    if (!block) return null;
    try {
      return JSON.parse(block.textContent);
    } catch {
      return null;
    }
  }

  /** Parts on top of each other; where one is unknown, nothing is drawn. */
  function stack(lines) {
    let below = null;
    return lines.map((line) => {
      const above = line.map((value, index) => {
        if (value === null) return null;
        return value + (below && below[index] !== null ? below[index] : 0);
      });
      below = above.map((value, index) => (value === null && below ? below[index] : value));
      return above;
    });
  }

  function columns(data, chart) {
    const times = Array.from({ length: data.bins }, (_, index) => (data.begin + (index + 0.5) * data.step) / 1000);
    const means = chart.lines.map((line) => line.mean);
    const drawn = chart.stacked ? stack(means) : means;
    // The upper parts are drawn first, and the lower ones over them.
    const all = [times, ...(chart.stacked ? drawn.slice().reverse() : drawn)];
    if (chart.lines.length === 1 && chart.lines[0].max) all.push(chart.lines[0].max);
    return all;
  }

  function series(chart) {
    const line = (index) => ({
      label: chart.lines[index].label,
      stroke: () => colour(`--s${index % 8}`),
      width: 1.4,
      fill: chart.stacked || chart.lines.length === 1 ? () => `${colour(`--s${index % 8}`)}38` : undefined,
      points: { show: false },
      spanGaps: false,
    });
    const order = chart.lines.map((_, index) => index);
    const lines = (chart.stacked ? order.reverse() : order).map(line);
    if (chart.lines.length === 1 && chart.lines[0].max) {
      lines.push({ label: "peak", stroke: () => `${colour("--s0")}70`, width: 1, points: { show: false } });
    }
    return [{}, ...lines];
  }

  function limitLine(chart) {
    return (plot) => {
      if (!chart.limit || chart.limit.value > chart.top) return;
      const { ctx, bbox } = plot;
      const y = plot.valToPos(chart.limit.value, "y", true);
      ctx.save();
      ctx.strokeStyle = colour("--low");
      ctx.setLineDash([5, 4]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.restore();
    };
  }

  /** What the lines say at the cursor, in words below the chart. */
  function reading(figure, chart, data) {
    let words = figure.querySelector(".reading");
    if (!words) {
      words = document.createElement("p");
      words.className = "reading";
      words.setAttribute("aria-hidden", "true");
      figure.querySelector(".plot").append(words);
    }
    return (plot) => {
      const index = plot.cursor.idx;
      if (index === null || index === undefined) {
        words.textContent = "";
        return;
      }
      const time = timeShort(new Date(data.begin + (index + 0.5) * data.step));
      const parts = chart.lines.map((line) => {
        const value = line.mean[index];
        return `${line.label} ${value === null || value === undefined ? "–" : WRITE[chart.unit](value)}`;
      });
      words.textContent = `${time}   ${parts.join("   ")}`;
    };
  }

  function axis(extra) {
    const grid = { stroke: () => colour("--line"), width: 1 };
    return { stroke: () => colour("--dim"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif", ...extra };
  }

  // Seconds between labels that read well; uPlot's own have nothing between one minute and five.
  const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30];
  for (const minutes of [1, 2, 3, 5, 10, 15, 20, 30]) STEPS.push(minutes * 60);
  for (const hours of [1, 2, 3, 4, 6, 8, 12]) STEPS.push(hours * 3600);
  for (const days of [1, 2, 3, 5, 7, 14, 30, 60, 90, 180, 365, 730]) STEPS.push(days * 86400);

  const timeLabels = (plot, values, _axis, _space, step) => {
    const span = plot.scales.x.max - plot.scales.x.min;
    return values.map((value) => {
      const time = new Date(Math.round(value * 1000));
      if (step < 1) return `${clockOf(time)}.${Math.floor(time.getMilliseconds() / 100)}`;
      if (span > 4 * 86400) return `${MONTHS[time.getMonth()]} ${time.getDate()}`;
      return step % 60 === 0 && span > 600 ? clockOf(time).slice(0, 5) : clockOf(time);
    });
  };

  function draw(figure, chart, data) {
    const canvas = figure.querySelector(".canvas");
    const plot = figure.querySelector(".plot");
    const told = reading(figure, chart, data);
    plot.classList.add("drawn");
    const write = WRITE[chart.unit] || String;
    const options = {
      width: Math.max(160, plot.clientWidth),
      height: 150,
      padding: [8, 20, 0, 0],
      legend: { show: false },
      // The cursor is shared; what is chosen in one chart is chosen once.
      cursor: { y: false, sync: { key: "met", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: true }, y: { range: () => [0, chart.top] } },
      axes: [
        axis({ values: timeLabels, incrs: STEPS, size: 24, space: 58 }),
        axis({ splits: () => [0, chart.top / 2, chart.top], values: (_, values) => values.map((value) => (value === 0 ? "0" : write(value, chart.top))), size: 64, gap: 6 }),
      ],
      series: series(chart),
      bands: chart.stacked ? chart.lines.slice(1).map((_, index) => ({ series: [index + 1, index + 2] })) : [],
      hooks: { draw: [limitLine(chart)], setCursor: [told], setSelect: [(of) => select(of)] },
    };
    canvas.replaceChildren();
    charts.push({ plot: new uPlot(options, columns(data, chart), canvas), figure, frame: plot });
  }

  function drawAll() {
    for (const { plot } of charts) plot.destroy();
    charts = [];
    const data = source(document);
    if (!data || typeof uPlot === "undefined") return;
    for (const chart of data.charts) {
      const figure = document.getElementById(`chart-${chart.id}`);
      if (figure) draw(figure, chart, data);
    }
  }

  // ---- zoom: the same page with another time, so that reload, back and a link to it work
  function select(plot) {
    if (plot.select.width < 4) return;
    const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((x) => Math.round(plot.posToVal(x, "x") * 1000));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to - from < 1000) return;
    if (!document.querySelector("#zoom")) {
      for (const one of charts) one.plot.setScale("x", { min: from / 1000, max: to / 1000 });
      return;
    }
    const address = new URL(location.href);
    address.searchParams.set("from", from);
    address.searchParams.set("to", to);
    address.hash = "";
    go(address);
  }

  function go(address) {
    history.pushState(null, "", address);
    refresh(true);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[data-zoom]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    const address = new URL(link.href);
    address.hash = "";
    go(address);
  });
  document.addEventListener("dblclick", (event) => {
    if (!event.target.closest || !event.target.closest(".chart")) return;
    const all = document.querySelector("#zoom a:last-of-type");
    if (all && new URL(location.href).searchParams.has("from")) all.click();
    if (!document.querySelector("#zoom")) drawAll();
  });
  addEventListener("popstate", () => refresh(true));

  // ---- live parts: the same page again, and what has changed put in place
  const live = document.getElementById("live");
  const every = Number(document.body.dataset.every || 0) * 1000;
  let asking = null;
  let timer = 0;

  /** Makes `old` what `now` is, with as few changes as possible: focus, selection and scroll position stay. */
  function patch(old, now) {
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!now.hasAttribute(name)) old.removeAttribute(name);
    }
    const rows = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    let place = old.firstChild;
    for (const wanted of [...now.childNodes]) {
      const known = wanted.nodeType === 1 && wanted.id ? rows.get(wanted.id) : null;
      if (known) {
        if (known !== place) old.insertBefore(known, place);
        else place = place.nextSibling;
        patch(known, wanted);
      } else if (place && place.nodeType === wanted.nodeType && place.nodeName === wanted.nodeName && !place.id) {
        if (wanted.nodeType === 1) patch(place, wanted);
        else if (place.nodeValue !== wanted.nodeValue) place.nodeValue = wanted.nodeValue;
        place = place.nextSibling;
      } else {
        old.insertBefore(document.importNode(wanted, true), place);
      }
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  function take(page) {
    localise(page);
    const before = document.getElementById("chart-data");
    const text = before ? before.textContent : "";
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = page.getElementById(part.id);
      if (!now) continue;
      // Charts are drawn from the data below them.
      if (part.id === "charts" && charts.length && sameCharts(part, now)) captions(part, now);
      else patch(part, now);
    }
    const after = document.getElementById("chart-data");
    if (after && after.textContent !== text) redraw();
  }

  const ids = (part) => [...part.querySelectorAll("[data-chart]")].map((figure) => figure.id).join();
  const sameCharts = (one, other) => ids(one) === ids(other);

  function captions(part, now) {
    for (const figure of part.querySelectorAll("[data-chart]")) {
      const wanted = now.querySelector(`#${CSS.escape(figure.id)}`);
      patch(figure.querySelector("figcaption"), wanted.querySelector("figcaption"));
      figure.querySelector(".plot").setAttribute("aria-label", wanted.querySelector(".plot").getAttribute("aria-label"));
    }
  }

  /** New data into the charts that there are. */
  function redraw() {
    const data = source(document);
    const drawn = charts.map(({ figure }) => figure.dataset.chart).join();
    if (!data || drawn !== data.charts.map((chart) => chart.id).join()) return drawAll();
    const shape = (chart) => `${chart.lines.map((line) => line.label)}${chart.top}`;
    data.charts.forEach((chart, index) => {
      const one = charts[index];
      if (one.shape !== undefined && one.shape === shape(chart)) one.plot.setData(columns(data, chart));
      else {
        one.plot.destroy();
        draw(one.figure, chart, data);
        charts[index] = charts.pop();
      }
      charts[index].shape = shape(chart);
    });
  }

  async function refresh(now = false) {
    clearTimeout(timer);
    if (asking) asking.abort();
    asking = new AbortController();
    try {
      const answer = await fetch(location.href, { signal: asking.signal, headers: { Accept: "text/html" }, credentials: "same-origin" });
      // Another login is needed, or the page is gone.
      if (answer.redirected || !answer.ok) throw new Error(String(answer.status));
      take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      state("live", false);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (now) location.reload();
      state("not updated", true);
    }
    plan();
  }

  function state(words, stale) {
    if (!live || !every) return;
    live.hidden = false;
    live.textContent = words;
    live.classList.toggle("stale", stale);
  }

  function plan() {
    clearTimeout(timer);
    if (every && !document.hidden) timer = setTimeout(refresh, every);
  }

  // ---- starts and ends of jobs are streamed: the page is fetched again when one comes, and not only now and then
  let stream = null;
  let soon = 0;
  function listen() {
    const address = document.body.dataset.stream;
    if (!address || !every || stream || document.hidden || typeof EventSource === "undefined") return;
    stream = new EventSource(address);
    const news = () => {
      clearTimeout(soon);
      soon = setTimeout(refresh, 250);
    };
    stream.addEventListener("started", news);
    stream.addEventListener("ended", news);
    // Too many are open, or another login is needed: the timer goes on.
    stream.addEventListener("error", () => stream && stream.readyState === EventSource.CLOSED && deafen());
  }
  function deafen() {
    clearTimeout(soon);
    if (stream) stream.close();
    stream = null;
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      deafen();
    } else if (every) {
      refresh();
      listen();
    }
  });
  addEventListener("pagehide", deafen);
  addEventListener("pageshow", (event) => event.persisted && listen());

  // ---- forms: no empty parameters in the address; several boxes are one list
  const filter = document.getElementById("filter");
  if (filter) {
    filter.addEventListener("submit", (event) => {
      event.preventDefault();
      const address = new URL(filter.action);
      const given = new FormData(filter);
      for (const name of new Set(given.keys())) {
        const values = given.getAll(name).filter((value) => value !== "");
        if (values.length) address.searchParams.set(name, values.join(","));
      }
      const boxes = [...filter.querySelectorAll("[name=columns]")];
      if (boxes.every((box) => box.checked === box.defaultChecked) && !new URL(location.href).searchParams.has("columns")) {
        address.searchParams.delete("columns");
      }
      location.assign(address);
    });
  }

  // ---- begin
  localise(document);
  drawAll();
  if (every) state("live", false);
  plan();
  listen();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const { plot, frame } of charts) plot.setSize({ width: Math.max(160, frame.clientWidth), height: 150 });
  });
})();
