// The curves: one small chart each. A pointer or the arrow keys choose a step, whose numbers are said below; a click or
// enter opens it.
"use strict";
(() => {
  const drawn = [];
  function colour(name) {
    const probe = document.createElement("i");
    probe.className = name;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }
  // Ticks as uPlot has them, but for those that its three digits would all show as 0.
  function ticks(chart, at) {
    const most = Math.max(...at.map(Math.abs));
    if (most && most < 0.01) return at.map((one) => (one ? one.toExponential(1).replace(".0e", "e") : "0"));
    return at.map((one) => one.toLocaleString("en", { maximumFractionDigits: 6 }));
  }
  function range(chart, least, most) {
    if (least == null || least === most) return [Math.min(0, least ?? 0), Math.max(1, (most ?? 0) * 1.2)];
    return uPlot.rangeNum(least, most, 0.1, true);
  }
  function draw(figure) {
    const steps = JSON.parse(figure.dataset.steps);
    const lines = JSON.parse(figure.dataset.lines);  // pairs of name and values, in the order of the figures above
    const plot = figure.querySelector(".plot"), said = figure.querySelector(".at-step");
    const muted = colour("line5");
    const text = getComputedStyle(document.body);
    const grid = { stroke: text.getPropertyValue("--line") && colour("grid-line"), width: 1 };
    const font = `11px ${text.fontFamily}`;
    const axis = { stroke: muted, font, grid: { ...grid, show: true }, ticks: { show: false } };
    plot.replaceChildren();
    const chart = new uPlot({
      width: plot.clientWidth, height: 150, padding: [8, 8, 0, 0], legend: { show: false }, cursor: { y: false, points: { size: 7 } },
      scales: { x: { time: false }, y: { range } },
      axes: [{ ...axis, size: 26, values: (_, at) => at.map((one) => (Number.isInteger(one) ? one : "")) }, { ...axis, size: 54, values: ticks }],
      series: [{}, ...lines.map(([name], at) => ({
        label: name, stroke: colour(`line${at}`), width: 1.75, spanGaps: true, points: { show: steps.length < 3, size: 6 },
      }))],
      hooks: { setCursor: [(made) => {
        const at = made.cursor.idx;
        if (at != null || !figure.contains(document.activeElement)) said.textContent = at == null ? "" : `${figure.dataset.policy}@${steps[at]}: ${lines.map(([name, values]) => `${name} ${values[at] == null ? "none" : values[at].toPrecision(4)}`).join(", ")}`;
      }] },
    }, [steps, ...lines.map(([, values]) => values)], plot);
    function open() {
      const at = chart.cursor.idx;
      if (at != null && steps[at]) location.href = `/training/step?${new URLSearchParams({ policy: figure.dataset.policy, step: steps[at] })}`;
    }
    chart.over.addEventListener("click", open);
    figure.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
      const last = steps.length - 1, now = chart.cursor.idx;
      const to = { ArrowLeft: now == null ? last : now - 1, ArrowRight: now == null ? 0 : now + 1, Home: 0, End: last }[event.key];
      if (event.key === "Enter") open();
      else if (to === undefined) return;
      else chart.setCursor({ left: chart.valToPos(steps[Math.min(Math.max(to, 0), last)], "x"), top: 0 });
      event.preventDefault();
    };
    drawn.push(chart);
  }
  function all() {
    for (const chart of drawn.splice(0)) chart.destroy();
    for (const figure of document.querySelectorAll("[data-chart]")) draw(figure);
  }
  all();
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(all, 150); });
  document.addEventListener("arttrace:theme", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
