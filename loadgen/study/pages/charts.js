// Every panel by uPlot, which has axes, values under the pointer and zoom. Its curves, spans and labels are drawn here.
(() => {
  const HEIGHT = 220, NEAR = 14, DENSE = 150, MARK = 3.3, MANY = 2000, FONT = "11px system-ui,sans-serif";
  const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((part) => part * 10 ** power)).flat();
  const charts = new Map();
  const colour = (role) => getComputedStyle(document.documentElement).getPropertyValue(`--${role}`);
  const written = (value, digits = 5) => value.toLocaleString("en-US", { maximumSignificantDigits: digits });

  // Round values at a logarithmic axis: one or three a decade, or as at a linear one.
  const powers = (u, axis, low, high) => {
    const decades = Math.log10(high / low), ticks = [];
    if (decades < 0.7) {
      const step = Number(((high - low) / 4).toPrecision(1));
      for (let n = Math.ceil(low / step); n * step <= high; n += 1) ticks.push(n * step);
    } else for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
      for (const part of decades > 1.8 ? [1] : [1, 2, 5]) ticks.push(Number(`${part}e${power}`));
    return ticks.filter((value) => value >= low && value <= high);
  };

  // All points in the order of x, as uPlot needs them; of a timeline, which has rows instead, moments.
  const arrange = ({ curves, spans, x_log, y_log }) => {
    if (spans.length) {
      const first = Math.min(...spans.flatMap(({ begin }) => begin)), last = Math.max(...spans.flatMap(({ end }) => end));
      return Array.from({ length: MANY }, (_, n) => ({ x: first + n / (MANY - 1) * (last - first) }));
    }
    const least = Math.min(...curves.flatMap(({ x }) => x.filter((value) => value > 0)));
    const points = curves.flatMap(({ x, y }, of) => x.map((value, n) => ({ of, y: y[n], x: x_log && value !== null ? Math.max(value, least) : value })));
    const drawn = points.filter(({ x, y }) => x !== null && y !== null && !(y_log && y <= 0));
    return drawn.length ? drawn.sort((one, other) => one.x - other.x) : [{ x: 0 }];
  };

  class Chart {
    constructor(plot, width) {
      const panel = JSON.parse(plot.dataset.panel), { curves, spans, x_label, y_label } = panel;
      Object.assign(this, { plot, panel, points: arrange(panel), stop: -1 });
      this.places = curves.map((_, of) => this.points.flatMap((point, place) => point.of === of ? [place] : []));
      this.rows = [...new Set(spans.flatMap(({ at }) => at))].sort((one, other) => one - other);
      this.shares = y_label.startsWith("cumulative ");
      this.moments = /^s\b/.test(x_label);
      this.apart = !this.moments && curves.every(({ form }) => ["points", "joined", "marks"].includes(form));
      this.whole = this.measure();
      this.tools();
      const faint = () => colour("faint"), grid = { stroke: () => colour("grid"), width: 0.7 };
      const axis = (scale, log, whole) => ({
        scale, font: FONT, labelFont: FONT, stroke: faint, grid, ticks: { show: false }, gap: 4,
        values: (u, ticks) => ticks.map((value) => written(value, 12)),
        ...(log && { splits: powers, filter: (u, ticks) => ticks }), ...(whole && { incrs: WHOLE }),
      });
      const kinds = spans.length ? spans.map(({ name, tone }) => ({ name, role: tone, sample: "solid" }))
        : curves.map(({ name, form, x }, of) => ({ name, role: panel.pens[of][0], hidden: !x.length || (!name && of > 0), sample:
          ["points", "marks"].includes(form) ? "dotted" : panel.pens[of][1].length ? "dashed" : "solid" }));
      this.u = new uPlot({
        width, height: HEIGHT, padding: [22, 12, 0, null],
        series: [{ label: spans.length ? y_label.split(",")[0] : x_label, value: (u, raw, series, place) => this.head(place) }, ...kinds.map((kind) => ({
          label: kind.name || y_label, class: kind.hidden ? "hidden" : undefined, stroke: () => colour(kind.role),
          paths: () => null, points: { show: false }, value: (u, raw, series, place) => this.tell(series - 1, place),
        }))],
        scales: {
          x: { time: false, distr: panel.x_log ? 3 : 1, range: (u, low, high) => this.clamp(low, high) },
          y: { distr: panel.y_log ? 3 : 1, dir: spans.length ? -1 : 1, range: (u, low, high) => this.stretch(low, high) },
        },
        axes: [
          { ...axis("x", panel.x_log), label: panel.x_log ? `${x_label} (log)` : x_label, labelSize: 18, size: 22 },
          { ...axis("y", panel.y_log, spans.length || y_label === "requests"), size: (u, ticks) => 12 + 6.5 * Math.max(2, ...(ticks ?? []).map((text) => text.length)) },
        ],
        legend: { markers: { width: spans.length ? 7 : 2, stroke: (u, n) => `var(--${kinds[n - 1].role})`, dash: (u, n) => kinds[n - 1].sample, fill: "none" } },
        cursor: {
          y: spans.length > 0, points: { size: 7 }, drag: { dist: 4 }, dataIdx: (u, series, closest, x) => this.find(series, closest, x),
          sync: this.moments ? { key: plot.closest(".pictures").dataset.place, scales: ["x", null], filters: { pub: (type) => type === "mousemove" } } : {},
        },
        hooks: { drawClear: [() => this.shade()], draw: [() => this.draw()], setScale: [() => this.mark()] },
      }, [this.points.map(({ x }) => x), ...kinds.map((_, of) => this.points.map((point) => point.of === of ? point.y : undefined))], plot);
      plot.querySelector(".u-legend").setAttribute("aria-live", "polite");
      this.mark();
    }

    // Axes
    measure() {
      const { x_end, x_log } = this.panel, xs = this.points.map(({ x }) => x);
      if (x_end !== null) return [-0.015 * x_end, 1.015 * x_end];
      const low = xs[0], high = xs.at(-1);
      if (x_log) return [low / (high / low) ** 0.02 / (low < high ? 1 : 2), high * (high / low) ** 0.02 * (low < high ? 1 : 2)];
      const margin = 0.02 * (high - low) || 0.05 * Math.abs(low) || 0.5;
      return [low - margin, high + margin];
    }

    clamp(low, high) {
      const all = low <= this.points[0].x && high >= this.points.at(-1).x;
      return all ? this.whole : [Math.max(low, this.whole[0]), Math.min(high, this.whole[1])];
    }

    stretch(low, high) {
      const { y_log, y_low, y_top } = this.panel, { rows } = this;
      if (rows.length) {
        const margin = 0.06 * (rows.at(-1) - rows[0]) || 0.5;
        return [rows[0] - margin, rows.at(-1) + margin];
      }
      if (y_log) return low > 0 ? [low / 1.2, high * 1.2] : [0.1, 10];
      const top = y_top ? 1.02 * y_top : 1.06 * Math.max(high ?? 0, 0) || 1;
      return [y_low ?? -0.012 * top, top];
    }

    seen({ x }) { const { min, max } = this.u.scales.x; return x >= min && x <= max; }

    // Values under the pointer
    nearest(places) {
      const { u, points } = this;
      let best = null, least = Infinity;
      for (const place of places) if (this.seen(points[place])) {
        const far = Math.hypot(u.valToPos(points[place].x, "x") - u.cursor.left, this.apart ? u.valToPos(points[place].y, "y") - u.cursor.top : 0);
        if (far < least) [best, least] = [place, far];
      }
      return [best, least];
    }

    find(series, closest, x) {
      const { panel: { curves, spans }, points, places, rows, u } = this;
      if (spans.length) {
        const at = u.posToVal(u.cursor.top, "y"), far = rows.map((row) => Math.abs(row - at));
        return far.indexOf(Math.min(...far));
      }
      const steps = curves[0].form === "steps", held = steps ? Math.max(0, points.findLastIndex((point) => point.x <= x)) : closest;
      if (!series) return this.apart ? this.nearest(points.keys())[0] : held;
      const own = places[series - 1];
      if (steps || this.shares) return own.findLast((place) => place <= held) ?? null;
      const [place, far] = this.nearest(own);
      return far <= NEAR || curves.length === 1 ? place : null;
    }

    head(place) {
      const { panel: { curves, spans }, points, rows } = this;
      if (place == null) return "–";
      if (spans.length) return written(rows[place]);
      const next = curves.length === 1 && curves[0].form === "steps" ? points[place + 1] : null;
      return `${this.shares ? "≤ " : ""}${written(points[place].x)}${next ? ` to ${written(next.x)}` : ""}`;
    }

    tell(of, place) {
      const { panel: { spans }, points, rows, u } = this;
      if (place == null) return this.shares && u?.cursor.idx != null ? "0" : "–";
      if (!spans.length) return written(points[place].y);
      const { begin, end, at } = spans[of], n = at.indexOf(rows[place]);
      return n < 0 ? "–" : `${written(begin[n])} to ${written(end[n])} (${written(end[n] - begin[n], 3)})`;
    }

    // What uPlot has no word for
    shade() {
      const { u: { ctx, bbox, valToPos }, panel: { band } } = this;
      if (!band) return;
      const [left, right] = band.map((value) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, valToPos(value, "x", true))));
      ctx.fillStyle = colour("band");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }

    draw() {
      const { panel, rows, u, u: { ctx, bbox } } = this, dot = uPlot.pxRatio, marks = [];
      const at = (x, y) => [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
      ctx.save();
      ctx.font = FONT.replace("11", 11 * dot);
      ctx.fillStyle = colour("faint");
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      ctx.fillText(panel.y_log ? `${panel.y_label} (log)` : panel.y_label, 4 * dot, bbox.top - 9 * dot);
      ctx.beginPath();
      ctx.rect(bbox.left - 4 * dot, bbox.top - 4 * dot, bbox.width + 8 * dot, bbox.height + 8 * dot);
      ctx.clip();
      panel.spans.forEach(({ tone, begin, end, at: own }, of) => {
        if (!u.series[of + 1].show) return;
        ctx.beginPath();
        own.forEach((row, n) => { ctx.moveTo(...at(begin[n], row)); ctx.lineTo(...at(end[n], row)); });
        ctx.strokeStyle = colour(tone);
        ctx.lineWidth = Math.min(9 * dot, Math.max(dot / 2, 0.62 * bbox.height / rows.at(-1)));
        ctx.stroke();
      });
      panel.curves.forEach((curve, of) => u.series[of + 1].show && this.trace(curve, panel.pens[of], at, marks));
      this.label(at, marks);
      ctx.restore();
    }

    // Samples are joined only where they are denser than a line is wide, as in run_charts.
    trace({ form, x, y, labels, hollow }, [role, dash, mark], at, marks) {
      const { panel, u: { ctx } } = this, dot = uPlot.pxRatio;
      const apart = form === "line" && !panel.y_top && x.length >= DENSE && x.filter((value) => this.seen({ x: value })).length < DENSE;
      let pen = false, level;
      ctx.beginPath();
      ctx.strokeStyle = ctx.fillStyle = colour(role);
      x.forEach((value, n) => {
        if (value === null || y[n] === null) { pen = false; return; }
        const [px, py] = at(value, y[n]);
        if (form === "joined" || form === "marks") marks.push([px, py]);
        if (apart || form === "points") {
          const radius = dot * (labels.length ? 2.7 : 1.7);
          ctx.moveTo(px + radius, py);
          ctx.arc(px, py, radius, 0, 2 * Math.PI);
        } else if (form !== "marks") {
          if (pen && form === "steps") ctx.lineTo(px, level);
          if (pen) ctx.lineTo(px, py); else ctx.moveTo(px, py);
        }
        [pen, level] = [true, py];
      });
      ctx.setLineDash(dash.map((part) => part * 1.6 * dot));
      ctx.lineWidth = 1.6 * dot;
      if (apart || form === "points") { ctx.globalAlpha = 0.75; ctx.fill(); } else ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.setLineDash([]);
      ctx.lineWidth = dot;
      if (form === "joined" || form === "marks") x.forEach((value, n) => {
        const [px, py] = at(value, y[n]), [corners, star, turn] = mark, count = corners * (1 + star);
        ctx.beginPath();
        for (let k = 0; k < count; k += 1) {
          const angle = (2 * k / count - 0.5) * Math.PI + turn * Math.PI / 180, radius = MARK * dot * (star && k % 2 ? 0.45 : 1);
          ctx.lineTo(px + Math.cos(angle) * radius, py + Math.sin(angle) * radius);
        }
        ctx.closePath();
        ctx.fillStyle = colour(hollow[n] ? "paper" : role);
        ctx.fill();
        ctx.stroke();
      });
    }

    // Labels, right or left of their points, where they meet no other and no mark.
    label(at, marks) {
      const { panel, u: { ctx, bbox } } = this, dot = uPlot.pxRatio, right = bbox.left + bbox.width;
      const taken = marks.map(([x, y]) => [x - 3 * dot, y - 3 * dot, x + 3 * dot, y + 3 * dot]);
      ctx.fillStyle = colour("faint");
      for (const { x, y, labels } of panel.curves) labels.forEach((text, n) => {
        const [px, py] = at(x[n], y[n]), long = ctx.measureText(text).width;
        if (!this.seen({ x: x[n] })) return;
        for (const down of [12, -4, 22, -15, 33, -26]) for (const left of [px + 5 * dot, px - 5 * dot - long]) {
          const base = py + down * dot, box = [left, base - 9 * dot, left + long, base + 2 * dot];
          const free = left >= bbox.left && box[2] <= right + 5 * dot && base <= bbox.top + bbox.height + 2 * dot && box[1] >= bbox.top - 4 * dot;
          if (!free || taken.some(([a, b, c, d]) => box[0] < c && a < box[2] && box[1] < d && b < box[3])) continue;
          taken.push(box);
          ctx.fillText(text, left, base);
          return;
        }
      });
    }

    // Buttons and keys
    tools() {
      const { plot } = this, figure = plot.closest("figure"), bar = document.createElement("div");
      const button = (text, name, press) => {
        const made = document.createElement("button");
        Object.assign(made, { type: "button", textContent: text, title: name, ariaLabel: name, onclick: press });
        bar.append(made);
        return made;
      };
      bar.className = "tools";
      button("−", "Zoom out", () => this.zoom(2));
      button("+", "Zoom in", () => this.zoom(0.5));
      this.reset = button("All", "Show all of it", () => this.zoom(Infinity));
      const large = button("⤢", "Full width", () => { large.ariaPressed = figure.classList.toggle("large"); });
      figure.append(bar);
      plot.tabIndex = 0;
      plot.ariaLabel += " Arrow keys show values, + and - zoom, 0 shows all.";
      plot.addEventListener("keydown", (event) => this.press(event));
      plot.addEventListener("blur", () => { this.stop = -1; this.u.setCursor({ left: -10, top: -10 }); });
    }

    mark() {
      const { min, max } = this.u?.scales.x ?? {};
      if (this.u) this.reset.hidden = min <= this.whole[0] && max >= this.whole[1];
    }

    zoom(times) {
      const { u, whole } = this, width = u.bbox.width / uPlot.pxRatio, middle = u.cursor.left >= 0 ? u.cursor.left : width / 2;
      const ends = Number.isFinite(times) ? [middle * (1 - times), middle + (width - middle) * times].map((px) => u.posToVal(px, "x")) : whole;
      u.setScale("x", { min: ends[0], max: ends[1] });
    }

    press(event) {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };
      const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity, Escape: Infinity };
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in moves || event.key in zooms)) return;
      event.preventDefault();
      if (event.key in zooms) { this.zoom(zooms[event.key]); return; }
      const { u, points, rows, panel: { spans } } = this;
      const stops = rows.length ? rows.map((y) => ({ y, x: Math.min(...spans.flatMap(({ at, begin }) => at.includes(y) ? [begin[at.indexOf(y)]] : [])) }))
        : points.filter((point, n) => this.seen(point) && (this.apart || point.x !== points[n - 1]?.x));
      this.stop = Math.min(stops.length - 1, Math.max(0, this.stop + moves[event.key] * (event.shiftKey ? 10 : 1)));
      const { x, y } = stops[this.stop];
      u.setCursor({ left: u.valToPos(x, "x") + 0.01, top: u.valToPos(y, "y") });
    }
  }

  // A chart is made once it has a width: those of a closed run when it is opened.
  const observer = new ResizeObserver((entries) => requestAnimationFrame(() => {
    for (const { target, contentRect: { width } } of entries) {
      const chart = charts.get(target);
      if (width && !chart) charts.set(target, new Chart(target, width));
      else if (width && chart.u.width !== width) chart.u.setSize({ width, height: HEIGHT });
    }
  }));
  for (const plot of document.querySelectorAll(".plot")) observer.observe(plot);
  addEventListener("colours", () => { for (const { u } of charts.values()) u.redraw(false); });
})();
