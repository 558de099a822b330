"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("lanes");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const CARDS = ["#3b82f6", "#e0703c", "#14a38b", "#b65bd6", "#c9a227", "#5d6fd8", "#d64f86", "#6b9e3a"];
  const STATES = { closed: "good", open: "bad", half_open: "warn", "half-open": "warn" };
  const tone = (name) => (name.startsWith("card") ? CARDS[+name.slice(4)] : css(name));
  const dpr = () => uPlot.pxRatio || window.devicePixelRatio || 1;
  const sync = uPlot.sync("drill");
  let plots = [];

  function shade(u, labelled) {
    const { ctx } = u, { left, top, width, height } = u.bbox;
    const band = (from, to, colour) => {
      const a = Math.max(u.valToPos(from, "x", true), left), b = Math.min(u.valToPos(to, "x", true), left + width);
      if (b > a) { ctx.fillStyle = colour; ctx.fillRect(a, top, b - a, height); }
      return [a, b];
    };
    ctx.save();
    for (const f of data.faults) {
      const end = f.gone ?? data.duration;
      const [a, b] = band(f.injecting, end, css("shade"));
      if (f.active !== null) band(f.active, f.rolling_back ?? end, css("dose"));
      if (!labelled || b <= a) continue;
      ctx.fillStyle = css("bad");
      ctx.font = `600 ${12 * dpr()}px system-ui, sans-serif`;
      ctx.textBaseline = "top";
      ctx.textAlign = "left";
      ctx.fillText(f.step, a + 4 * dpr(), top + 3 * dpr());
    }
    ctx.restore();
  }

  function drawStates(u, lane) {
    const { ctx } = u, { left, top, width, height } = u.bbox, row = height / lane.series.length;
    ctx.save();
    lane.series.forEach((s, i) => {
      const y = top + i * row + row * 0.2, h = row * 0.6;
      for (const span of s.spans) {
        const a = Math.max(u.valToPos(span.start, "x", true), left);
        const b = Math.min(u.valToPos(span.end, "x", true), left + width);
        if (b <= a) continue;
        ctx.globalAlpha = span.state === "closed" ? 0.25 : 0.85;
        ctx.fillStyle = css(STATES[span.state] ?? "neutral");
        ctx.fillRect(a, y, b - a, h);
      }
      ctx.globalAlpha = 1;
      ctx.fillStyle = css("ink");
      ctx.font = `${12 * dpr()}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText(s.label, left - 8 * dpr(), y + h / 2);
    });
    ctx.restore();
  }

  const stateAt = (s, t) => s.spans.find((span) => span.start <= t && t < span.end)?.state ?? "–";

  function columns(lane) {
    if (lane.kind !== "states") return uPlot.join(lane.series.map((s) => [s.x, s.y]));
    const x = [...new Set(lane.series.flatMap((s) => s.spans.flatMap((p) => [p.start, p.end])))];
    for (let t = 0; t < data.duration; t += data.duration / 400) x.push(t);
    x.sort((a, b) => a - b);
    return [x, ...lane.series.map(() => x.map(() => null))];
  }

  function seriesOf(lane, s) {
    const colour = lane.kind === "states" ? css("neutral") : tone(s.tone);
    const base = { label: s.label, stroke: colour, width: 1.5, spanGaps: lane.kind !== "scatter" };
    if (lane.kind === "states") {
      return { ...base, paths: () => null, points: { show: false },
        value: (u, v, i, n) => (n === null || n === undefined ? "–" : stateAt(s, u.data[0][n])) };
    }
    base.value = (u, v) => (v === null || v === undefined ? "–" : `${+v.toPrecision(3)} ${lane.unit}`);
    if (lane.kind === "scatter") {
      return { ...base, paths: () => null, points: { show: true, size: 4, width: 0, fill: colour, stroke: colour } };
    }
    if (lane.kind === "step") base.paths = uPlot.paths.stepped({ align: 1 });
    return { ...base, points: { show: false } };
  }

  function plot(lane, first) {
    const box = document.createElement("div");
    box.className = "lane";
    const head = box.appendChild(document.createElement("h3"));
    head.textContent = lane.title + " ";
    head.appendChild(document.createElement("small")).textContent = lane.unit;
    root.appendChild(box);
    const axis = { stroke: css("soft"), grid: { stroke: css("grid"), width: 1 }, ticks: { stroke: css("grid"), width: 1 },
      font: "12px system-ui, sans-serif" };
    const states = lane.kind === "states";
    const logs = lane.kind === "scatter" && Math.max(...lane.series.flatMap((s) => s.y)) > 2000;
    const height = states ? 34 + 26 * lane.series.length : lane.kind === "scatter" ? 200 : 130;
    return new uPlot({
      width: root.clientWidth - 18, height,
      scales: { x: { time: false, range: (u, min, max) => (u.zoomed ? [min, max] : [0, data.duration]) },
        y: states ? { range: [0, 1] } : logs ? { distr: 3, range: (u, min, max) => [Math.max(min * 0.8, 1), max * 1.25] }
          : { range: (u, min, max) => [0, Math.max(max * 1.08, 1e-9)] } },
      axes: [{ ...axis, values: (u, at) => at.map((t) => `${t} s`), size: 26 },
        { ...axis, size: 62, space: 26, ...(states ? { values: () => [], grid: { show: false }, ticks: { show: false } } : {}),
          ...(logs ? { filter: (u, at) => at.map((v) => (Number.isInteger(+Math.log10(v).toFixed(6)) ? v : null)) } : {}) }],
      series: [{ label: "t", value: (u, v) => (v === null || v === undefined ? "–" : `${v.toFixed(1)} s`) },
        ...lane.series.map((s) => seriesOf(lane, s))],
      cursor: { y: false, sync: { key: sync.key, scales: ["x", null], setSeries: false }, points: { show: lane.kind !== "states" },
        hover: { prox: lane.kind === "scatter" ? 12 : null },
        drag: { x: true, y: false }, focus: { prox: -1 } },
      hooks: {
        drawClear: [(u) => shade(u, first)],
        draw: [(u) => { if (states) drawStates(u, lane); }],
        setSelect: [(u) => { if (u.select.width > 0) zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); }],
        ready: [(u) => u.over.addEventListener("dblclick", () => zoom(0, data.duration))],
      },
    }, columns(lane), box);
  }

  function zoom(min, max) {
    for (const u of plots) {
      u.zoomed = max - min < data.duration;
      u.setScale("x", { min, max });
    }
  }

  function draw() {
    plots.forEach((u) => u.destroy());
    root.replaceChildren();
    plots = data.lanes.map((lane, i) => plot(lane, i === 0));
    plots.forEach((u) => sync.sub(u));
  }

  draw();
  window.addEventListener("resize", () => plots.forEach((u) => u.setSize({ width: root.clientWidth - 18, height: u.height })));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
