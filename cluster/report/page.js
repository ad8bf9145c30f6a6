"use strict";
// Zoom and numbers under the pointer, of what is drawn already: without this script the page says all the same.
(() => {
  const SCALE = 10000, LEFT = 62, TOP = 8, WIDTH = 646, HEIGHT = 190;
  const NS = "http://www.w3.org/2000/svg";
  const charts = [...document.querySelectorAll("figure.chart")].map(chartOf);
  const tools = document.getElementById("tools");
  const said = document.getElementById("zoomed");
  const reset = document.getElementById("whole");

  function chartOf(figure) {
    const svg = figure.querySelector("svg[role]"), given = svg.dataset;
    const labels = [...figure.querySelectorAll(".keys li")].map((li) => li.textContent.trim().replace(/^\S+\s/, ""));
    const lines = [...svg.querySelectorAll(".plot .mean, .plot .dots")].map((path) => ({ points: pointsOf(path) }));
    lines.forEach((line, n) => { line.label = labels[n]; });
    const spread = [...svg.querySelectorAll(".plot .range")].flatMap(pointsOf);
    return {
      figure, svg, lines, all: [...spread, ...lines.flatMap((line) => line.points)],
      plot: svg.querySelector(".plot"), bands: svg.querySelector(".bands"), cursor: svg.querySelector(".cursor"),
      read: figure.querySelector("output"),
      x0: +given.x0, x1: +given.x1, y0: +given.y0, y1: +given.y1, view: [0, SCALE], rows: [0, SCALE], at: null,
    };
  }

  function pointsOf(path) {
    const numbers = path.getAttribute("d").replace(/h0/g, " ").match(/-?\d+/g) || [], found = [];
    for (let n = 0; n + 1 < numbers.length; n += 2) found.push([+numbers[n], +numbers[n + 1]]);
    return found;
  }

  const stepOf = (chart, x) => chart.x0 + (x / SCALE) * (chart.x1 - chart.x0);
  const valueOf = (chart, y) => chart.y0 + ((SCALE - y) / SCALE) * (chart.y1 - chart.y0);
  const whole = (value) => Math.round(value).toLocaleString("en-US");

  function number(value) {
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(3);
    return (+value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  }

  function ticks(low, high, most) {
    const rough = (high - low) / (most - 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999999), found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
    return found;
  }

  function make(name, given, text) {
    const made = document.createElementNS(NS, name);
    for (const key in given) made.setAttribute(key, given[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // All charts have one axis of steps, so all show the same part of it.
  function show(low, high) {
    low = Math.max(0, low);
    high = Math.min(SCALE, high);
    if (high - low < 20) return;
    for (const chart of charts) draw(chart, low, high);
    const is_whole = low <= 0 && high >= SCALE, first = charts[0];
    reset.disabled = is_whole;
    said.textContent = is_whole ? "all steps" : `steps ${whole(stepOf(first, low))} to ${whole(stepOf(first, high))}`;
  }

  function draw(chart, low, high) {
    const seen = chart.all.filter(([x]) => x >= low && x <= high).map(([, y]) => y);
    let top = 0, bottom = SCALE;
    if ((low > 0 || high < SCALE) && seen.length) {
      top = seen.reduce((a, b) => Math.min(a, b));
      bottom = seen.reduce((a, b) => Math.max(a, b));
      const room = Math.max((bottom - top) * 0.05, 20);
      top -= room;
      bottom += room;
    }
    chart.view = [low, high];
    chart.rows = [top, bottom];
    chart.plot.setAttribute("viewBox", `${low} ${top} ${high - low} ${bottom - top}`);
    chart.bands.setAttribute("viewBox", `${low} 0 ${high - low} ${SCALE}`);
    const x = chart.svg.querySelector("g.x"), y = chart.svg.querySelector("g.y");
    const from = stepOf(chart, low), to = stepOf(chart, high), least = valueOf(chart, bottom), most = valueOf(chart, top);
    x.replaceChildren(...ticks(from, to, 6).map((value) => make("text", {
      x: LEFT + ((value - from) / (to - from)) * WIDTH, y: TOP + HEIGHT + 16, "text-anchor": "middle",
    }, whole(value))));
    y.replaceChildren(...ticks(least, most, 5).flatMap((value) => {
      const at = TOP + HEIGHT - ((value - least) / (most - least)) * HEIGHT;
      return [
        make("line", { x1: LEFT, x2: LEFT + WIDTH, y1: at, y2: at }),
        make("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, number(value)),
      ];
    }));
  }

  function unitOf(chart, event) {
    const box = chart.svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * 720 - LEFT) / WIDTH;
    return chart.view[0] + Math.min(1, Math.max(0, share)) * (chart.view[1] - chart.view[0]);
  }

  function placeOf(chart, unit) {
    return LEFT + ((unit - chart.view[0]) / (chart.view[1] - chart.view[0])) * WIDTH;
  }

  function tell(chart, unit) {
    chart.at = unit;
    const near = (points) => points.reduce((a, b) => (Math.abs(b[0] - unit) < Math.abs(a[0] - unit) ? b : a));
    const parts = chart.lines.filter((line) => line.points.length).map((line) => {
      const [x, y] = near(line.points);
      return `${line.label} ${number(valueOf(chart, y))} at step ${whole(stepOf(chart, x))}`;
    });
    chart.read.textContent = parts.join("; ");
    const place = placeOf(chart, unit);
    chart.cursor.setAttribute("x1", place);
    chart.cursor.setAttribute("x2", place);
    chart.cursor.setAttribute("visibility", "visible");
  }

  function listen(chart) {
    let from = null, shade = null;
    const end = () => {
      if (shade) shade.remove();
      from = shade = null;
    };
    chart.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      from = unitOf(chart, event);
      shade = make("rect", { class: "drag", y: TOP, height: HEIGHT, width: 0, x: placeOf(chart, from) });
      chart.svg.append(shade);
      chart.svg.setPointerCapture(event.pointerId);
    });
    chart.svg.addEventListener("pointermove", (event) => {
      const unit = unitOf(chart, event);
      tell(chart, unit);
      if (from === null) return;
      shade.setAttribute("x", placeOf(chart, Math.min(from, unit)));
      shade.setAttribute("width", Math.abs(placeOf(chart, from) - placeOf(chart, unit)));
    });
    chart.svg.addEventListener("pointerup", (event) => {
      const to = unitOf(chart, event), begin = from;
      end();
      if (begin !== null && Math.abs(placeOf(chart, begin) - placeOf(chart, to)) > 6) show(Math.min(begin, to), Math.max(begin, to));
    });
    chart.svg.addEventListener("pointercancel", end);
    chart.svg.addEventListener("dblclick", () => show(0, SCALE));
    chart.svg.addEventListener("keydown", (event) => {
      const [low, high] = chart.view, width = high - low, at = chart.at === null ? (low + high) / 2 : chart.at;
      const todo = {
        ArrowLeft: () => tell(chart, Math.max(low, at - width / 50)),
        ArrowRight: () => tell(chart, Math.min(high, at + width / 50)),
        "+": () => show(at - width / 4, at + width / 4),
        "=": () => show(at - width / 4, at + width / 4),
        "-": () => show(at - width, at + width),
        Escape: () => show(0, SCALE),
      }[event.key];
      if (!todo) return;
      todo();
      event.preventDefault();
    });
  }

  for (const chart of charts) listen(chart);
  if (charts.length) {
    reset.addEventListener("click", () => show(0, SCALE));
    tools.hidden = false;
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
