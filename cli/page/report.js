"use strict";
/* Draws the report's charts from the JSON in the page. No network, no state but the selects. */
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const trials = data.trials;
  const root = document.documentElement;
  const units = [...new Set(data.variants.map((v) => v.unit))];
  const ladder = data.workload.ladder.map((s) => s.tokens);
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const hues = ["first", "second", "third", "fourth"];
  const byId = (id) => document.getElementById(id);
  const value = (id) => byId(id).value;
  const indices = [...trials.tokens.keys()];
  const unitOf = (i) => data.variants[trials.variant[i]].unit;
  const spell = (config) => Object.entries(config).map(([n, v]) => `${n}=${v}`).join(" ");
  const wrapped = (config) => spell(config).replace(/((?:\S+ ){3}\S+) /g, "$1<br>");
  const tableOf = (unit, tokens) =>
    indices.filter((i) => trials.tokens[i] === tokens && unitOf(i) === unit);
  const least = (list) => list.reduce((a, b) => Math.min(a, b), Infinity);
  const bestOf = (unit, tokens) =>
    least(tableOf(unit, tokens).map((i) => trials.time_us[i]).filter((t) => t !== null));
  const geometric = (list) => Math.exp(list.reduce((a, b) => a + Math.log(b), 0) / list.length);

  function options(id, pairs) {
    const select = byId(id);
    if (!select) return;
    for (const [key, text] of pairs) select.add(new Option(text, key));
  }

  /* The width of a printed page: charts do not follow the paper by themselves. */
  const PAPER = 680;
  let printing = false;

  function layout(more) {
    const axis = {
      gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"),
      automargin: true,
    };
    const { xaxis, yaxis, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), size: 13, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 50, r: 15, t: 15, b: 45 }, height: 400, hovermode: "closest",
      hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
      ...(printing ? { width: PAPER, autosize: false } : { autosize: true }),
      ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
    };
  }

  const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
  const STEPS = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6].flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e));
  const plain = (x) => (x >= 1 ? x.toLocaleString("en") : String(Number(x.toPrecision(1))));

  /* A logarithmic axis with plain numbers at 1, 2 and 5, or only at 1 where it spans much. */
  function log(title, values, ticks = STEPS) {
    const span = Math.max(...values) / least(values);
    const kept = span > 300 && ticks === STEPS ? ticks.filter((x) => String(x.toExponential())[0] === "1") : ticks;
    return { type: "log", title: { text: title }, tickvals: kept, ticktext: kept.map(plain) };
  }

  const RATIOS = [1, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10, 20, 50, 100];

  /* A ratio's axis: from 1 up, so many ticks as do not collide. */
  function ratios(title, values) {
    const top = Math.max(1.01, ...values);
    const gap = Math.log(top) / 12;
    const kept = RATIOS.reduce((list, x) => (list.length && Math.log(x / list[list.length - 1]) < gap ? list : [...list, x]), []);
    return { ...log(title, [1, top], kept), range: [-0.03 * Math.log10(top), 1.05 * Math.log10(top)] };
  }

  /* Words at the places 0, 1, 2, ...: a category axis would take "16" for a place. */
  const words = (title, names) => ({
    title: { text: title }, tickvals: names.map((_, k) => k), ticktext: names.map(String),
    showgrid: false, zeroline: false, range: [-0.5, names.length - 0.5],
  });

  /* Each chart returns [traces, layout]. */
  const charts = {
    speedups() {
      const unit = value("speedup-unit");
      const rows = data.winners.filter((w) => w.unit === unit);
      const same = (w) => w.verdict === "default kept";
      const names = rows.map((w) => w.tokens);
      const traces = [...new Set(rows.map((w) => w.evidence))].map((word) => {
        const own = rows.filter((w) => w.evidence === word);
        const base = own.map((w) => w.default_interval_us ?? [w.default_time_us, w.default_time_us]);
        return {
          type: "bar", orientation: "h", name: word, base: 1, marker: { color: colour(word), opacity: 0.75 },
          y: own.map((w) => names.indexOf(w.tokens)), x: own.map((w) => w.speedup - 1),
          error_x: {
            type: "data", symmetric: false, visible: own.some((w) => w.interval_us[0] < w.interval_us[1]), color: colour("ink"), thickness: 1.2, width: 4,
            array: own.map((w, k) => (same(w) ? 0 : Math.max(0, base[k][1] / w.interval_us[0] - w.speedup))),
            arrayminus: own.map((w, k) => (same(w) ? 0 : Math.max(0, w.speedup - base[k][0] / w.interval_us[1]))),
          },
          text: own.map((w) => `${w.tokens} tokens: ${w.speedup.toFixed(3)}× (${w.verdict})<br>` +
            `${w.time_us.toPrecision(4)} µs instead of ${w.default_time_us.toPrecision(4)} µs, ${word}`),
          textposition: "none", hovertemplate: "%{text}<extra></extra>",
        };
      });
      return [traces, layout({
        height: 140 + 26 * rows.length, showlegend: true, bargap: 0.35,
        xaxis: { title: { text: "speed-up over the default" }, ticksuffix: "×" },
        yaxis: { ...words("tokens", names), range: [names.length - 0.4, -0.6] },
        shapes: [{ type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1,
                   line: { color: colour("ink"), width: 1.5 } }],
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 60, r: 20, t: 30, b: 45 },
      })];
    },

    heat() {
      const unit = value("heat-unit"), tokens = Number(value("heat-tokens"));
      const across = value("heat-x"), down = value("heat-y");
      const table = tableOf(unit, tokens), best = bestOf(unit, tokens);
      const config = (i) => data.variants[trials.variant[i]].config;
      const seen = (name) => [...new Set(table.map((i) => config(i)[name]))].sort(
        (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
      const xs = seen(across), ys = seen(down);
      const cells = ys.map((y) => xs.map((x) => {
        const here = table.filter((i) => config(i)[across] === x && config(i)[down] === y);
        const timed = here.filter((i) => trials.time_us[i] !== null);
        if (!timed.length) return { mark: here.length ? "✕" : "", hover: here.length ? `refused: ${data.whys[trials.why[here[0]]]}` : "not tried" };
        const fastest = timed.reduce((a, b) => (trials.time_us[a] <= trials.time_us[b] ? a : b));
        const ratio = trials.time_us[fastest] / best;
        return { ratio, mark: ratio.toFixed(2), hover:
          `${across}=${x} ${down}=${y}<br>${trials.time_us[fastest].toPrecision(4)} µs, ${ratio.toFixed(3)} of the best, ${timed.length} timed` +
          `<br>${wrapped(config(fastest))}` };
      }));
      const flat = cells.flat().filter((c) => c.ratio);
      const top = Math.min(3, Math.max(1.05, ...flat.map((c) => c.ratio)));
      // Near the best small differences matter: the scale is steep there.
      const depth = (ratio) => Math.sqrt(Math.log(Math.min(ratio, top)) / Math.log(top));
      const z = cells.map((row) => row.map((c) => (c.ratio ? depth(c.ratio) : null)));
      const ticks = [1, 1.02, 1.1, 1.25, 1.5, 2, 3].filter((r) => r <= top);
      const notes = cells.flatMap((row, j) => row.map((c, i) => ({
        x: i, y: j, text: c.ratio === 1 ? `<b>${c.mark}</b>` : c.mark, showarrow: false,
        font: { size: 13, color: c.ratio && depth(c.ratio) < 0.5 ? colour("paper") : colour("ink") },
      })));
      return [[{
        type: "heatmap", x: xs.map((_, k) => k), y: ys.map((_, k) => k), z, xgap: 2, ygap: 2, hoverongaps: true,
        text: cells.map((row) => row.map((c) => c.hover)),
        hovertemplate: "%{text}<extra></extra>",
        colorscale: [[0, colour("high")], [1, colour("low")]], zmin: 0, zmax: 1,
        colorbar: { title: { text: "of best", side: "right" }, thickness: 12, outlinewidth: 0,
                    tickvals: ticks.map(depth), ticktext: ticks.map(String) },
      }], layout({
        height: 130 + 52 * Math.max(3, ys.length), annotations: notes,
        xaxis: words(across, xs), yaxis: words(down, ys),
      })];
    },

    roof() {
      const roofs = data.roofs, floors = data.floors;
      const at = (i) => floors.find((f) => f.tokens === trials.tokens[i] && f.unit === unitOf(i));
      const xs = floors.map((f) => f.flops / f.min_bytes), ridge = roofs.flops_per_s / roofs.bytes_per_s;
      const ends = [least(xs) / 2, Math.max(ridge, ...xs) * 2];
      const roof = [ends[0], ridge, ends[1]];
      const traces = [{
        type: "scatter", mode: "lines", name: "roof", x: roof, line: { color: colour("ink"), width: 2 },
        y: roof.map((x) => Math.min(x * roofs.bytes_per_s, roofs.flops_per_s) / 1e12), hoverinfo: "skip",
      }];
      units.forEach((unit, k) => {
        const own = indices.filter((i) => unitOf(i) === unit && trials.time_us[i] !== null);
        traces.push({
          type: "scatter", mode: "markers", name: unit, x: own.map((i) => at(i).flops / at(i).min_bytes),
          y: own.map((i) => at(i).flops / trials.time_us[i] / 1e6),
          marker: { color: colour(hues[k]), size: 6, opacity: 0.6 },
          text: own.map((i) => `${trials.tokens[i]} tokens: ${trials.time_us[i].toPrecision(4)} µs ` +
            `(${data.evidences[trials.evidence[i]]}), floor ${at(i).floor_us.toPrecision(3)} µs` +
            `<br>${wrapped(data.variants[trials.variant[i]].config)}`),
          hovertemplate: "%{text}<extra></extra>",
        });
        const won = data.winners.filter((w) => w.unit === unit);
        const floor = (w) => floors.find((f) => f.tokens === w.tokens && f.unit === unit);
        traces.push({
          type: "scatter", mode: "markers", name: `${unit}, winner`, x: won.map((w) => floor(w).flops / floor(w).min_bytes),
          y: won.map((w) => floor(w).flops / w.time_us / 1e6),
          marker: { color: colour(hues[k]), size: 11, symbol: "star", line: { color: colour("ink"), width: 1 } },
          text: won.map((w) => `${w.tokens} tokens, winner: ${w.time_us.toPrecision(4)} µs (${w.evidence}), ` +
            `${(100 * floor(w).floor_us / w.time_us).toFixed(0)} % of the roof`),
          hovertemplate: "%{text}<extra></extra>",
        });
      });
      return [traces, layout({
        height: 460, showlegend: true, xaxis: log("operations a byte", ends),
        yaxis: log("TFLOP/s", traces.flatMap((t) => t.y)),
      })];
    },

    convergence() {
      const seconds = value("convergence-x") === "at_s";
      const traces = [], grid = new Map();
      for (const unit of units) {
        const own = indices.filter((i) => unitOf(i) === unit && trials.own[i]);
        if (seconds) own.sort((a, b) => trials.at_s[a] - trials.at_s[b]);
        const turn = new Map();
        for (const i of own) if (!turn.has(trials.variant[i])) turn.set(trials.variant[i], turn.size + 1);
        for (const tokens of ladder) {
          const table = own.filter((i) => trials.tokens[i] === tokens && trials.time_us[i] !== null);
          const final = least(table.map((i) => trials.time_us[i]));
          const xs = [], ys = [];
          let best = Infinity;
          for (const i of table) {
            best = Math.min(best, trials.time_us[i]);
            xs.push(seconds ? trials.at_s[i] : turn.get(trials.variant[i]));
            ys.push(best / final);
          }
          if (!xs.length) continue;
          grid.set(`${unit} ${tokens}`, [xs, ys]);
          traces.push({
            type: "scatter", mode: "lines", x: xs, y: ys, showlegend: false, opacity: 0.35,
            line: { shape: "hv", width: 1, color: colour(hues[units.indexOf(unit)]) },
            name: `${unit}, ${tokens} tokens`, hovertemplate: "%{x:.4~g}: %{y:.3f}<extra>%{fullData.name}</extra>",
          });
        }
      }
      const starts = [...grid.values()].map(([xs]) => xs[0]);
      const places = [...new Set([...grid.values()].flatMap(([xs]) => xs))]
        .filter((x) => x >= Math.max(...starts)).sort((a, b) => a - b);
      const upTo = ([xs, ys], x) => { let k = 0; while (k + 1 < xs.length && xs[k + 1] <= x) k += 1; return ys[k]; };
      traces.push({
        type: "scatter", mode: "lines", name: "geometric mean", x: places,
        y: places.map((x) => geometric([...grid.values()].map((pair) => upTo(pair, x)))),
        line: { shape: "hv", width: 3, color: colour("ink") }, hovertemplate: "%{x:.4~g}: %{y:.3f}<extra>mean</extra>",
      });
      units.forEach((unit, k) => traces.push({
        type: "scatter", mode: "lines", name: unit, x: [null], y: [null], line: { color: colour(hues[k]) },
      }));
      return [traces, layout({
        showlegend: true,
        xaxis: { title: { text: seconds ? "seconds from the start" : "variants of the unit tried" }, rangemode: "tozero" },
        yaxis: ratios("best so far / best found", [...grid.values()].flatMap(([, ys]) => ys)),
      })];
    },

    seconds() {
      const s = data.seconds;
      const parts = [["compile", s.compile_s, "work", "first"], ["verify", s.verify_s, "work", "second"],
        ["time", s.time_s, "work", "third"], ["search", s.search_s, "clock", "compiled"],
        ["choose", s.choose_s, "clock", "fourth"]].filter((p) => p[1] !== null);
      const traces = parts.map(([name, x, row, hue]) => ({
        type: "bar", orientation: "h", name, y: [row], x: [x], marker: { color: colour(hue) },
        text: `${name} ${x.toPrecision(3)} s`, textposition: "inside", insidetextanchor: "middle", insidetextfont: { color: colour("paper") },
        hovertemplate: `${name}: %{x:.2f} s<extra></extra>`,
      }));
      return [traces, layout({
        height: 190, barmode: "stack", showlegend: true, xaxis: { title: { text: "seconds" } },
        yaxis: { type: "category", autorange: "reversed", showgrid: false },
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
        margin: { l: 50, r: 15, t: 30, b: 45 },
      })];
    },

    facts() {
      const unit = value("facts-unit"), tokens = Number(value("facts-tokens")), name = value("facts-name");
      const best = bestOf(unit, tokens);
      const read = (v) => v.compile[name] ?? v.config[name];
      const table = tableOf(unit, tokens).filter(
        (i) => trials.time_us[i] !== null && data.variants[trials.variant[i]].compile);
      const traces = [["no spills", (v) => !v.compile.spill_bytes, "first", "circle"],
                      ["spills", (v) => v.compile.spill_bytes > 0, "bad", "square"]].map(([title, fits, hue, symbol]) => {
        const own = table.filter((i) => fits(data.variants[trials.variant[i]]));
        return {
          type: "scatter", mode: "markers", name: title, x: own.map((i) => read(data.variants[trials.variant[i]])),
          y: own.map((i) => trials.time_us[i] / best), marker: { color: colour(hue), symbol, size: 8, opacity: 0.6 },
          text: own.map((i) => wrapped(data.variants[trials.variant[i]].config)),
          hovertemplate: `${name} %{x}: %{y:.3f} of the best<br>%{text}<extra></extra>`,
        };
      });
      return [traces, layout({
        showlegend: true, xaxis: { title: { text: byId("facts-name").selectedOptions[0].text } },
        yaxis: ratios("time / best", traces.flatMap((t) => t.y)),
      })];
    },

    agreement() {
      const wanted = value("agreement-tokens");
      const traces = [];
      let low = Infinity, high = 0;
      units.forEach((unit, k) => {
        const own = indices.filter((i) => unitOf(i) === unit && trials.predicted_us[i] !== null &&
          trials.time_us[i] !== null && (!wanted || trials.tokens[i] === Number(wanted)));
        for (const i of own) {
          low = Math.min(low, trials.predicted_us[i], trials.time_us[i]);
          high = Math.max(high, trials.predicted_us[i], trials.time_us[i]);
        }
        traces.push({
          type: "scatter", mode: "markers", name: unit, x: own.map((i) => trials.predicted_us[i]),
          y: own.map((i) => trials.time_us[i]), marker: { color: colour(hues[k]), size: 6, opacity: 0.6 },
          text: own.map((i) => `${trials.tokens[i]} tokens<br>${wrapped(data.variants[trials.variant[i]].config)}`),
          hovertemplate: "predicted %{x:.4~g} µs, timed %{y:.4~g} µs<br>%{text}<extra></extra>",
        });
      });
      traces.unshift({
        type: "scatter", mode: "lines", name: "equal", x: [low, high], y: [low, high],
        line: { color: colour("soft"), dash: "dash", width: 1.5 }, hoverinfo: "skip",
      });
      return [traces, layout({ height: 440, showlegend: true, xaxis: log("predicted µs", [low, high]),
                                yaxis: log("timed µs", [low, high]) })];
    },

    experts() {
      const shares = data.workload.expert_shares;
      return [[{
        type: "bar", x: shares.map((_, k) => k + 1), y: shares.map((s) => s * 100), marker: { color: colour("first") },
        hovertemplate: "expert %{x} by size: %{y:.2f} %<extra></extra>",
      }], layout({
        height: 260, bargap: 0.1, xaxis: { title: { text: "expert, by share" } },
        yaxis: { title: { text: "share of rows, %" }, rangemode: "tozero" },
      })];
    },
  };

  const shown = Object.keys(charts).filter((name) => byId(`chart-${name}`));

  function draw(name) {
    const place = byId(`chart-${name}`);
    const [traces, more] = charts[name]();
    Plotly.react(place, traces, more, CONFIG);
    if (!printing && Math.abs(place.offsetWidth - place._fullLayout.width) > 1) Plotly.Plots.resize(place);
    place.dataset.drawn = "yes";
  }

  function fillSelects() {
    const named = units.map((u) => [u, u]);
    const counts = ladder.map((t) => [t, String(t)]);
    const axes = [...new Set(data.variants.flatMap((v) => Object.keys(v.config)))].filter(
      (name) => new Set(data.variants.map((v) => v.config[name])).size > 1);
    const front = [...["block_n", "block_m"].filter((n) => axes.includes(n)), ...axes].slice(0, 2);
    const rows = ["layer", ...new Set(data.winners.map((w) => w.unit))];
    options("speedup-unit", [...new Set(rows)].filter((u) => data.winners.some((w) => w.unit === u)).map((u) => [u, u]));
    options("heat-unit", named);
    options("heat-tokens", counts);
    options("heat-x", axes.map((n) => [n, n]));
    options("heat-y", axes.map((n) => [n, n]));
    if (front.length) { byId("heat-x").value = front[0]; byId("heat-y").value = front[front.length - 1]; }
    options("convergence-x", [["trials", "variants tried"],
      ...(trials.at_s.some((t) => t !== null) ? [["at_s", "wall time"]] : [])]);
    options("facts-unit", named);
    options("facts-tokens", counts);
    options("facts-name", [["registers", "registers a thread"], ["spill_bytes", "spilled bytes a thread"],
      ["shared_bytes", "shared memory, bytes"], ["buffers", "buffers made"], ["num_stages", "stages asked for"],
      ["mma_k", "K of a matrix instruction"], ["tmem_columns", "tensor memory columns"], ["threads", "threads a block"]]);
    options("agreement-tokens", [["", "all"], ...counts]);
  }

  function chosen() {
    return root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  }

  function label() {
    const dark = chosen() === "dark";
    byId("theme").textContent = dark ? "Light" : "Dark";
    byId("theme").setAttribute("aria-pressed", String(dark));
  }

  function filterWinners() {
    const select = byId("winner-rows");
    if (!select) return;
    if (!data.winners.some((w) => w.unit === "layer")) select.value = "";
    byId("winner-table").classList.toggle("one-unit", Boolean(select.value));
    for (const row of document.querySelectorAll("#winner-table tbody tr")) {
      row.hidden = Boolean(select.value) && row.dataset.unit !== select.value;
    }
  }

  const drawAll = () => shown.forEach(draw);
  root.classList.add("scripted");
  fillSelects();
  filterWinners();
  label();
  drawAll();
  byId("winner-rows")?.addEventListener("change", filterWinners);
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = chosen() === "dark" ? "light" : "dark";
    label();
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); drawAll(); });
  for (const name of shown) {
    for (const select of byId(`chart-${name}`).closest("figure").querySelectorAll("select")) {
      select.addEventListener("change", () => draw(name));
    }
  }
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    printing = true;
    drawAll();
  });
  addEventListener("afterprint", () => {
    printing = false;
    if (before === undefined) delete root.dataset.theme; else root.dataset.theme = before;
    drawAll();
  });
})();
