// Values under the pointer, zoom and full width for every picture that has axes. Without this they are whole.
(() => {
  const SVG = "http://www.w3.org/2000/svg", NARROW = 340, LETTERS = 1.3, JOINED = 150, RIGHT = 10, NEAR = 12, LEAST = 1e-3;
  const written = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 5 });
  const measured = (value, unit) => /^\S+$|^s,/.test(unit) ? `${written(value)} ${unit}` : `${unit}: ${written(value)}`;
  const made = (name, attributes, parent) => {
    const drawn = ["line", "path", "rect", "text", "clipPath"].includes(name);
    const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  };
  const tick = (value) => {
    const [divisor, letter] = Math.abs(value) >= 1e9 ? [1e9, "G"] : Math.abs(value) >= 1e6 ? [1e6, "M"]
      : Math.abs(value) >= 1e4 ? [1e3, "k"] : [1, ""];
    return `${Number((value / divisor).toPrecision(6))}${letter}`;
  };
  const linear = (low, high, most) => {
    const least = (high - low) / most, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((each) => each > least * 0.999);
    const ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n += 1) ticks.push(n * step);
    return ticks;
  };
  const logarithmic = (low, high) => {
    const decades = high - low, parts = decades > 3 ? [1] : decades > 1.8 ? [1, 3] : [1, 2, 5], ticks = [];
    if (decades < 0.7) return linear(10 ** low, 10 ** high, 5);
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1)
      for (const part of parts) ticks.push(part * 10 ** power);
    return ticks.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  };
  const charts = [];

  class Chart {
    constructor(svg) {
      const { axes: [x, y], units, curves, spans = [], band, top } = JSON.parse(svg.dataset.chart);
      const axis = ([low, high, first, last, log]) => ({ low, high, first, last, log });
      Object.assign(this, { svg, units, spans, band, top, x: axis(x), y: axis(y), whole: axis(x), tall: axis(y) });
      this.curves = curves.map(([name, form, xs, ys, labels]) => ({ name, form, xs, ys, labels }));
      this.width = NARROW;
      this.height = Number(svg.getAttribute("viewBox").split(" ")[3]);
      this.floor = Math.max(y[2], y[3]);
      this.ceiling = Math.min(y[2], y[3]);
      this.figure = svg.closest("figure");
      this.prepare();
      this.listen();
    }

    parts(letter) { return [...this.svg.querySelectorAll(`[data-part=${letter}]`)]; }

    prepare() {
      const { svg, figure } = this, title = svg.querySelector("title");
      const clip = made("clipPath", { id: `${title.id}-clip` }, svg);
      this.window = made("rect", {}, clip);
      for (const part of [..."cs"].flatMap((letter) => this.parts(letter)))
        part.setAttribute("clip-path", `url(#${clip.id})`);
      svg.setAttribute("aria-label", `${title.textContent} Arrow keys show values, + and - zoom, 0 shows all.`);
      svg.removeAttribute("aria-labelledby");
      title.remove();  // or the browser shows it where the values are to be
      this.selection = made("rect", { class: "selection", visibility: "hidden" }, svg);
      this.guide = made("line", { class: "guide", visibility: "hidden" }, svg);
      this.dots = made("path", { class: "dots", fill: "none" }, svg);
      this.tip = made("div", { class: "tip", role: "status", hidden: "" }, figure);
      this.tools = made("div", { class: "tools" }, figure);
      this.button("−", "Zoom out", () => this.zoom(2));
      this.button("+", "Zoom in", () => this.zoom(0.5));
      this.reset = this.button("All", "Show all of it", () => this.show(this.whole.low, this.whole.high));
      this.enlarge = this.button("⤢", "Full width", () => this.resize());
      this.reset.hidden = true;
      this.frame();
    }

    button(text, label, press) {
      const button = made("button", { type: "button", title: label, "aria-label": label }, this.tools);
      button.textContent = text;
      button.onclick = press;
      return button;
    }

    frame() {
      const { window, x, ceiling, floor } = this;
      const box = { x: x.first, y: ceiling - 3, width: x.last - x.first, height: floor - ceiling + 6 };
      for (const [key, value] of Object.entries(box)) window.setAttribute(key, value);
    }

    at(axis, value) {
      const scaled = !axis.log ? value : value > 0 ? Math.log10(value) : axis.low - 1;
      return axis.first + (scaled - axis.low) / (axis.high - axis.low) * (axis.last - axis.first);
    }

    value(px) {
      const { low, high, first, last, log } = this.x, scaled = low + (px - first) / (last - first) * (high - low);
      return log ? 10 ** scaled : scaled;
    }

    seen(value) {
      const scaled = this.x.log ? Math.log10(value) : value;
      return value !== null && scaled >= this.x.low && scaled <= this.x.high;
    }

    // Zoom: a stretch of the x axis, and of y what it then needs.
    show(low, high) {
      const { whole } = this, length = Math.max(high - low, (whole.high - whole.low) * LEAST);
      this.x.low = Math.max(whole.low, Math.min(low, whole.high - length));
      this.x.high = Math.min(whole.high, this.x.low + length);
      const zoomed = this.x.high - this.x.low < (whole.high - whole.low) * 0.999;
      this.reset.hidden = !zoomed;
      const inside = zoomed && this.top === undefined && !this.y.log && !this.spans.length
        ? this.curves.flatMap(({ xs, ys, form }) => ys.filter((y, i) => y !== null
          && (this.seen(xs[i]) || (form === "steps" && i + 1 < xs.length && this.seen(xs[i + 1])))))
        : [];
      const most = Math.max(0, ...inside);
      Object.assign(this.y, most ? { low: -0.012 * most * 1.06, high: most * 1.06 } : this.tall);
      this.draw();
    }

    zoom(times) {
      const { low, high } = this.x, px = this.anchor ? this.at(this.x, this.point().x) : (this.x.first + this.x.last) / 2;
      const share = Math.min(1, Math.max(0, (px - this.x.first) / (this.x.last - this.x.first)));
      const middle = low + share * (high - low);
      this.show(middle - (middle - low) * times, middle + (high - middle) * times);
    }

    resize() {
      const large = this.figure.classList.toggle("large");
      // Letters of a wide picture are LETTERS times as large as in the style sheet.
      this.width = large ? Math.max(NARROW, Math.round(this.figure.clientWidth / LETTERS)) : NARROW;
      this.x.last = this.width - RIGHT;
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.enlarge.setAttribute("aria-pressed", large);
      this.frame();
      this.draw();
    }

    draw() {
      this.leave();
      this.grid();
      const [curves, spans, markers, labels] = [..."csml"].map((letter) => this.parts(letter));
      const line = ({ xs, ys, form }, points) => {
        let path = "", pen = false;
        xs.forEach((x, i) => {
          if (x === null || form === "marks") { pen = false; return; }
          const [px, py] = [this.at(this.x, x).toFixed(2), this.at(this.y, ys[i]).toFixed(2)];
          if (points) path += `M${px} ${py}h0`;
          else if (!pen) path += `M${px} ${py}`;
          else path += form === "steps" ? `H${px}V${py}` : `L${px} ${py}`;
          pen = true;
        });
        return path;
      };
      this.curves.forEach((curve, i) => {
        // As in run_charts: samples are joined only where they are denser than a line is wide.
        const apart = curve.form === "line" && this.top === undefined && !this.reset.hidden
          && curve.xs.filter((x) => this.seen(x)).length < JOINED;
        curves[i].setAttribute("d", line(curve, apart || curve.form === "points"));
        curves[i].setAttribute("style", apart ? "stroke-width:3.4;stroke-linecap:round;stroke-dasharray:none" : "");
      });
      this.spans.forEach(([, begins, ends, ats], i) => {
        const path = begins.map((begin, k) => `M${this.at(this.x, begin).toFixed(2)} ${this.at(this.y, ats[k]).toFixed(1)}`
          + `H${this.at(this.x, ends[k]).toFixed(2)}`);
        spans[i].setAttribute("d", path.join(""));
      });
      let marker = 0, label = 0;
      for (const { xs, ys, form, labels: texts } of this.curves) xs.forEach((x, i) => {
        const [px, py] = [this.at(this.x, x), this.at(this.y, ys[i])];
        if (form === "joined" || form === "marks") {
          const path = markers[marker], box = path.home ??= path.getBBox();
          path.setAttribute("visibility", this.seen(x) ? "visible" : "hidden");  // a clip would move with it
          path.setAttribute("transform", `translate(${px - box.x - box.width / 2} ${py - box.y - box.height / 2})`);
          marker += 1;
        }
        if (i < texts.length) {
          const late = px > this.x.first + 0.85 * (this.x.last - this.x.first), text = labels[label];
          const down = text.down ??= Number(text.getAttribute("y")) - this.at(this.tall, ys[i]);
          const side = text.side ??= text.getAttribute("text-anchor"), left = late || side === "end";
          text.setAttribute("x", px + (left ? -5 : 5));
          text.setAttribute("y", py + down);
          text.setAttribute("text-anchor", left ? "end" : "start");
          text.setAttribute("visibility", this.seen(x) ? "visible" : "hidden");
          label += 1;
        }
      });
    }

    grid() {
      const { svg, x, y, ceiling, floor } = this, [lines] = this.parts("g"), [label] = this.parts("u");
      for (const old of [...this.parts("x"), ...this.parts("y")]) old.remove();
      const across = x.log ? logarithmic(x.low, x.high) : linear(x.low, x.high, this.width > NARROW ? 12 : 6);
      const up = (y.log ? logarithmic(y.low, y.high) : linear(Math.min(y.low, y.high), Math.max(y.low, y.high), 6))
        .filter((value) => !(this.spans.length || this.units[1] === "requests") || Number.isInteger(value));
      const text = (part, px, py, value) => {
        const shown = made("text", { "data-part": part, x: px.toFixed(1), y: py.toFixed(1) });
        shown.textContent = tick(value);
        label.before(shown);
      };
      let path = "";
      for (const value of across) { const px = this.at(x, value); path += `M${px} ${ceiling}V${floor}`; text("x", px, floor + 14, value); }
      for (const value of up) { const py = this.at(y, value); path += `M${x.first} ${py}H${x.last}`; text("y", x.first - 5, py + 4, value); }
      lines.setAttribute("d", path);
      this.parts("a")[0].setAttribute("d", `M${x.first} ${floor}H${x.last}`);
      label.setAttribute("x", x.last);
      if (this.band) {
        const [left, right] = this.band.map((value) => Math.min(x.last, Math.max(x.first, this.at(x, value))));
        this.parts("b")[0].setAttribute("d", `M${left} ${ceiling}H${right}V${floor}H${left}z`);
      }
    }

    // Values: the anchor is the point that is shown, [curve, index], or of a timeline the row.
    point() {
      const [which, index] = this.anchor;
      if (this.spans.length) return { x: Math.min(...this.row(index).map(([, begin]) => begin)) };
      const { xs, ys } = this.curves[which];
      return { x: xs[index], y: ys[index] };
    }

    row(at) {
      return this.spans.flatMap(([name, begins, ends, ats]) => {
        const place = ats.indexOf(at);
        return place < 0 ? [] : [[name, begins[place], ends[place]]];
      }).sort((one, other) => one[1] - other[1]);
    }

    ordered() {
      const rows = this.spans.flatMap(([, begins, ends, ats]) =>
        ats.filter((at, i) => this.seen(begins[i]) || this.seen(ends[i])).map((at) => [0, at]));
      if (this.spans.length) return [...new Map(rows.map((row) => [row[1], row])).values()].sort((a, b) => a[1] - b[1]);
      const shown = this.curves.map(({ xs, labels }) => labels.length ? 0 : xs.filter((x) => this.seen(x)).length);
      const which = shown.indexOf(Math.max(...shown)), { xs } = this.curves[which];
      return xs.map((x, i) => [which, i]).filter(([, i]) => this.seen(xs[i])).sort(([, i], [, k]) => xs[i] - xs[k]);
    }

    nearest(curve, px, py) {
      const { xs, ys, form } = curve;
      let best = -1, least = Infinity;
      xs.forEach((x, i) => {
        if (!this.seen(x)) return;
        const far = py === undefined ? Math.abs(this.at(this.x, x) - px)
          : Math.hypot(this.at(this.x, x) - px, this.at(this.y, ys[i]) - py);
        if (form === "steps" && this.at(this.x, x) > px + 0.01 && best >= 0) return;
        if (far < least || (form === "steps" && far <= least)) { best = i; least = far; }
      });
      return [best, least];
    }

    // The point of another curve whose value holds at x: that of a share or a step until the next, else one near it.
    held(curve, x, px, shares) {
      if (curve.form === "steps" || shares) return curve.xs.findLastIndex((at) => at !== null && at <= x);
      const [index, far] = this.nearest(curve, px);
      return far <= NEAR ? index : -1;
    }

    hover(px, py) {
      if (this.spans.length) {
        const ats = this.spans.flatMap(([, , , each]) => each);
        const near = (at) => Math.abs(this.at(this.y, at) - py);
        this.anchor = [0, ats.reduce((best, at) => near(at) < near(best) ? at : best)];
      } else {
        const scattered = this.curves.every(({ form }) => ["points", "joined", "marks"].includes(form));
        let least = Infinity;
        this.curves.forEach((curve, which) => {
          if (curve.labels.length && !scattered) return;
          const [index, far] = this.nearest(curve, px, scattered ? py : undefined);
          if (index >= 0 && far < least) { this.anchor = [which, index]; least = far; }
        });
      }
      this.tell();
    }

    tell() {
      if (!this.anchor) return;
      const { x } = this.point(), px = this.at(this.x, x), rows = [];
      const across = this.units[0], up = this.units[1].replace("cumulative ", ""), shares = up !== this.units[1];
      let head = `${shares ? "≤ " : ""}${measured(x, across)}`, dots = "";
      if (this.spans.length) {
        const [unit, row] = this.units.map((name) => name.split(",")[0]);
        head = `${row} ${written(this.anchor[1])}`;
        for (const [name, begin, end] of this.row(this.anchor[1]))
          rows.push([name, `${written(begin)} to ${written(end)} ${unit} (${written(Number((end - begin).toPrecision(4)))} ${unit})`]);
      } else this.curves.forEach((curve, which) => {
        if (curve.labels.length && !curve.name) {
          const [label, far] = this.nearest(curve, px);
          if (far < 4) head += `, ${curve.labels[label]}`;
          return;
        }
        const index = which === this.anchor[0] ? this.anchor[1] : this.held(curve, x, px, shares);
        if (index < 0 && !shares) return;
        const [at, y] = index < 0 ? [x, 0] : [curve.xs[index], curve.ys[index]];
        const name = this.curves.length > 1 && curve.name ? curve.name : "";
        if (curve.form === "steps" && which === this.anchor[0] && !shares && index + 1 < curve.xs.length)
          head = `${written(at)} to ${written(curve.xs[index + 1])} ${across}`;
        rows.push([name, up === "requests" && y === 1 ? "1 request" : measured(y, up)]);
        dots += `M${this.at(this.x, curve.form === "steps" || shares ? x : at)} ${this.at(this.y, y)}h0`;
      });
      this.dots.setAttribute("d", dots);
      this.line(px);
      this.write(head, rows, px);
      for (const other of charts) if (other !== this && this.over_time && other.over_time && other.group === this.group) {
        other.line(other.seen(x) ? other.at(other.x, x) : NaN);
      }
    }

    get over_time() { return this.units[0] === "s" && !this.x.log; }
    get group() { return this.figure.parentElement; }

    line(px) {
      this.guide.setAttribute("visibility", px === px ? "visible" : "hidden");
      if (px !== px) return;
      for (const [key, value] of Object.entries({ x1: px, x2: px, y1: this.ceiling, y2: this.floor })) this.guide.setAttribute(key, value);
    }

    write(head, rows, px) {
      const { tip, svg, figure } = this;
      tip.replaceChildren();
      made("b", {}, tip).textContent = head;
      for (const [name, text] of rows) made("span", {}, tip).textContent = name ? `${name}: ${text}` : text;
      tip.hidden = false;
      const box = svg.getBoundingClientRect(), scale = box.width / this.width, right = px * scale + 12;
      const room = figure.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, right <= room ? right : Math.min(room, px * scale - tip.offsetWidth - 12))}px`;
      tip.style.top = `${box.top - figure.getBoundingClientRect().top + this.ceiling * scale}px`;
    }

    leave() {
      this.anchor = null;
      this.tip.hidden = true;
      this.dots.setAttribute("d", "");
      for (const chart of charts.length ? charts : [this]) chart.line(NaN);
    }

    listen() {
      const { svg } = this;
      const place = (event) => {
        const box = svg.getBoundingClientRect(), scale = this.width / box.width;
        return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      };
      let began = null;
      svg.addEventListener("pointermove", (event) => {
        const [px, py] = place(event);
        if (began !== null && Math.abs(px - began) > 4) {
          const [left, right] = [began, px].sort((one, other) => one - other).map((at) => Math.min(this.x.last, Math.max(this.x.first, at)));
          for (const [key, value] of Object.entries({ x: left, width: right - left, y: this.ceiling, height: this.floor - this.ceiling, visibility: "visible" }))
            this.selection.setAttribute(key, value);
        }
        if (py <= this.floor + 20) this.hover(px, py); else this.leave();
      });
      svg.addEventListener("pointerdown", (event) => {
        const [px, py] = place(event);
        if (event.pointerType === "mouse" && event.button === 0 && py <= this.floor) {
          began = px;
          svg.setPointerCapture(event.pointerId);
        } else if (event.pointerType !== "mouse") this.hover(px, py);
      });
      svg.addEventListener("pointerup", (event) => {
        const [px] = place(event), from = began;
        began = null;
        this.selection.setAttribute("visibility", "hidden");
        if (from === null || Math.abs(px - from) <= 4) return;
        const [low, high] = [from, px].sort((one, other) => one - other).map((at) => this.value(at));
        if (this.x.log) this.show(Math.log10(low), Math.log10(high)); else this.show(low, high);
      });
      svg.addEventListener("pointercancel", () => { began = null; this.selection.setAttribute("visibility", "hidden"); });
      svg.addEventListener("pointerleave", ({ pointerType }) => {
        if (began === null && pointerType === "mouse") this.leave();  // a finger's values stay until the next touch
      });
      svg.addEventListener("dblclick", () => this.show(this.whole.low, this.whole.high));
      svg.addEventListener("blur", () => this.leave());
      svg.addEventListener("keydown", (event) => this.press(event));
    }

    press(event) {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) {
        const places = this.ordered();
        if (!places.length) return;
        const now = this.anchor ? places.findIndex(([which, i]) => which === this.anchor[0] && i === this.anchor[1]) : -1;
        const step = moves[event.key] * (event.shiftKey ? 10 : 1);
        const next = now < 0 && Number.isFinite(step) ? 0 : now + step;
        this.anchor = places[Math.min(places.length - 1, Math.max(0, next))];
        this.tell();
      } else if (event.key === "+" || event.key === "=") this.zoom(0.5);
      else if (event.key === "-") this.zoom(2);
      else if (event.key === "0" || event.key === "Escape") this.show(this.whole.low, this.whole.high);
      else return;
      event.preventDefault();
    }
  }

  // Those that are next to each other are prepared once one of them is entered: a page may hold hundreds.
  const prepared = new Set();
  const enter = ({ target }) => {
    const group = target.closest("figure").parentElement;
    if (prepared.has(group)) return;
    prepared.add(group);
    for (const svg of group.querySelectorAll("svg[data-chart]")) charts.push(new Chart(svg));
  };
  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    svg.setAttribute("tabindex", "0");
    for (const event of ["pointerenter", "focus"]) svg.addEventListener(event, enter, { once: true });
  }
})();
