"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const percent = (value, digits = 1) => (value === null ? "–" : (100 * value).toFixed(digits) + "%");
  const views = {};
  const state = { method: data.selected, chosen: 0, share: 20, cut: 20 };

  // columns → records, the form Vega-Lite reads
  const records = (table) => {
    const names = Object.keys(table);
    return table[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, table[name][i]])));
  };
  const coverage = records(data.coverage);
  const guarantees = records(data.guarantees);
  const thresholds = data.decisions ? records(data.decisions.thresholds) : [];
  const means = records(data.means).flatMap(({ method, confidence, accuracy }) => {
    const first = confidence >= accuracy;
    return [
      { method, what: "confidence", value: confidence, place: first ? 0.95 : 0.83, words: data.words.mean + " " + percent(confidence) },
      { method, what: "accuracy", value: accuracy, place: first ? 0.83 : 0.95, words: data.words.share + " " + percent(accuracy) },
    ];
  });

  // class data exist for some methods only; the others show the uncalibrated classes
  const classMethod = () => (data.classes.methods[state.method] ? state.method : data.before);
  const classRecords = () => {
    const own = data.classes.methods[classMethod()];
    if (!own) return [];
    return data.classes.names.map((name, index) => ({
      index, name, rows: data.classes.rows[index], accuracy: own.accuracy[index],
      "too sure": own.over[index], "not sure enough": own.under[index],
      temperature: own.temperature ? own.temperature[index] : null,
    })).filter((one) => one.accuracy !== null);
  };
  // one mark per class and side, with where it stood before
  const classPoints = () => {
    const own = data.classes.methods[classMethod()], old = data.classes.methods[data.before];
    if (!own) return [];
    const joined = old && classMethod() !== data.before;
    return classRecords().flatMap((one) => [["too sure", "over"], ["not sure enough", "under"]].map(([side, field]) => ({
      index: one.index, name: one.name, rows: one.rows, accuracy: one.accuracy, side, error: own[field][one.index],
      old_error: (joined ? old[field][one.index] : null) ?? own[field][one.index],
      old_accuracy: (joined ? old.accuracy[one.index] : null) ?? one.accuracy, joined,
      larger: one[side] === Math.max(one["too sure"], one["not sure enough"]),
    })));
  };
  const binsOf = (method) => {
    const own = data.classes.methods[method];
    return !own ? [] : own.bins[state.chosen].map(([thousandths, right, count]) => ({
      method, confidence: thousandths / 1000, accuracy: right / count, count,
    }));
  };
  const classBins = () => {
    const method = classMethod();
    return [...binsOf(method), ...(method === data.before ? [] : binsOf(data.before))];
  };

  const datasets = () => ({
    reliability: records(data.reliability), histogram: records(data.histogram), means, coverage,
    classes: classRecords(), class_points: classPoints(), class_bins: classBins(),
    smooth: data.decisions ? records(data.decisions.smooth) : [], thresholds, everyone: data.decisions ? records(data.decisions.everyone) : [],
    groups: data.groups ? records(data.groups.gaps) : [], group_bins: data.groups ? records(data.groups.bins) : [], shift: data.shift ? records(data.shift) : [],
  });

  const setSignals = (name, signals) => {
    const view = views[name];
    if (!view) return;
    for (const [key, value] of Object.entries(signals)) view.signal(key, value);
    view.runAsync();
  };
  const setData = (name, dataset, rows) => { if (views[name]) views[name].data(dataset, rows).runAsync(); };

  const drawClass = () => {
    if (!data.classes.names.length) return;
    const name = data.classes.names[state.chosen];
    const bins = binsOf(classMethod());
    byId("class-name").textContent = name;
    setSignals("class-scatter", { chosen: state.chosen });
    setSignals("class-temperature", { chosen: state.chosen });
    setSignals("class-diagram", { method: classMethod() });
    setData("class-diagram", "class_bins", classBins());
    const rows = bins.reduce((sum, bin) => sum + bin.count, 0);
    if (!rows) { byId("class-words").textContent = "No test row was predicted as this class."; return; }
    const right = bins.reduce((sum, bin) => sum + bin.accuracy * bin.count, 0) / rows;
    const confidence = bins.reduce((sum, bin) => sum + bin.confidence * bin.count, 0) / rows;
    const gap = confidence - right;
    const noise = 1.96 * Math.sqrt(Math.max(1 / rows, right * (1 - right)) / rows);
    const side = Math.abs(gap) <= noise ? "no clear bias" : gap > 0 ? "too sure" : "not sure enough";
    const words = byId("class-words");
    words.textContent = `${rows.toLocaleString("en")} rows, ${percent(confidence)} sure on average, right in ${percent(right)}: `;
    const strong = document.createElement("b");
    strong.textContent = `${side} (${gap > 0 ? "+" : "−"}${(100 * Math.abs(gap)).toFixed(1)} ± ${(100 * noise).toFixed(1)} points)`;
    words.append(strong);
  };

  const fillClasses = () => {
    const select = byId("class");
    const order = byId("class-order").value;
    const rows = classRecords();
    const error = (one) => (one["too sure"] ?? 0) + (one["not sure enough"] ?? 0);
    if (order === "error") rows.sort((a, b) => error(b) - error(a));
    if (order === "accuracy") rows.sort((a, b) => a.accuracy - b.accuracy);
    select.replaceChildren(...rows.map((one) => new Option(one.name, one.index)));
    if (!rows.some((one) => one.index === state.chosen) && rows.length) state.chosen = rows[0].index;
    select.value = state.chosen;
  };

  const pickClass = (index) => {
    state.chosen = Number(index);
    byId("class").value = state.chosen;
    drawClass();
  };

  const drawShare = () => {
    const at = (method) => coverage.find((one) => one.method === method && Math.abs(one.deferred - state.share / 100) < 0.005);
    const now = at(state.method), before = at(data.before);
    byId("share-out").textContent = state.share + "%";
    setSignals("coverage", { share: state.share / 100 });
    if (!now) return;
    const compared = state.method === data.before || !before ? "" : ` Before calibration: ${percent(before.risk, 2)}.`;
    byId("share-words").textContent =
      `Below ${now.threshold.toFixed(3)} a person decides; of the rest ${percent(now.risk, 2)} are wrong, ` +
      `at most ${percent(now.bound, 2)} with 95% confidence.${compared}`;
  };

  // what acting from a threshold on does, under the chosen method
  const drawCut = () => {
    if (!data.decisions) return;
    const at = (cut) => thresholds.find((one) => one.method === state.method && Math.abs(one.threshold - cut) < 0.005);
    const perThousand = (one) => Math.round(1000 * one.flagged).toLocaleString("en");
    const now = at(state.cut / 100);
    byId("cut-out").textContent = state.cut + "%";
    setSignals("decision", { cut: state.cut / 100 });
    if (!now) return;
    const found = Math.round(1000 * now.flagged * (now.ppv ?? 0));
    byId("cut-words").textContent = now.flagged === 0 ? "No test row reaches this probability." :
      `Of 1,000 rows ${perThousand(now)} are flagged, ${found.toLocaleString("en")} of them rightly; ` +
      `${percent(now.sensitivity)} of the positives are found and ${percent(1 - now.sensitivity)} are missed.`;
    byId("thresholds").replaceChildren(...data.decisions.table.map((cut) => {
      const one = at(cut), row = document.createElement("tr"), head = document.createElement("th");
      head.scope = "row";
      head.textContent = percent(cut, 0);
      const texts = [...["sensitivity", "specificity", "ppv", "npv"].map((name) => percent(one[name])), perThousand(one)];
      row.append(head, ...texts.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      return row;
    }));
  };

  const drawGuarantees = () => {
    byId("guarantees").replaceChildren(...guarantees.filter((one) => one.method === state.method).map(({ target, threshold, coverage, error }) => {
      const row = document.createElement("tr");
      const texts = threshold === null
        ? ["not reachable", "", ""] : [threshold.toFixed(3), percent(1 - coverage, 0), percent(error, 2)];
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = percent(target, 0);
      row.append(head, ...texts.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      return row;
    }));
  };

  const pickMethod = (method) => {
    if (!data.methods.includes(method)) return;
    state.method = method;
    byId("method").value = method;
    for (const row of document.querySelectorAll("#table tbody tr")) {
      const chosen = row.dataset.method === method;
      row.classList.toggle("current", chosen);
      row.querySelector("th button")?.setAttribute("aria-pressed", String(chosen));
    }
    for (const place of document.querySelectorAll(".current:not(tr)")) place.textContent = method;
    for (const place of document.querySelectorAll(".ece-words")) place.textContent = data.sentences[method] || "";
    for (const name of ["reliability", "histogram", "decision", "forest", "group-diagram", "coverage", "shift"]) setSignals(name, { method });
    if (data.groups) byId("group-words").textContent = data.groups.sentences[method] || "";
    const own = data.classes.methods[method];
    byId("class-note").hidden = Boolean(own) || !data.classes.names.length;
    byId("class-note").textContent = own ? "" : `To keep this page small, class data of ${method} are not on it; shown is ${data.before}. ` +
      `On this page: ${Object.keys(data.classes.methods).join(", ")}.`;
    setData("class-scatter", "class_points", classPoints());
    byId("temperature-card").hidden = !(own && own.temperature);
    byId("temperature-method").textContent = method;
    if (own && own.temperature) embed("class-temperature");
    fillClasses();
    drawClass();
    drawShare();
    drawGuarantees();
    drawCut();
  };

  const embed = async (name) => {
    const place = byId(name);
    const spec = data.charts[name];
    if (!place || !spec || place.closest("[hidden]")) return;
    const all = datasets();
    const wanted = JSON.stringify(spec);
    const needed = Object.fromEntries(Object.entries(all).filter(([key]) => wanted.includes(`"name": "${key}"`) || wanted.includes(`"name":"${key}"`)));
    const start = { method: state.method, before: data.before, chosen: state.chosen, share: state.share / 100, cut: state.cut / 100, prevalence: data.decisions ? data.decisions.prevalence : 0.5, show_before: byId("show-before").checked };
    const params = (spec.params || []).map((one) => (one.name in start ? { ...one, value: start[one.name] } : one));
    const { view } = await vegaEmbed(place, { ...spec, params, datasets: needed }, { actions: false, renderer: "svg", ast: true });
    views[name] = view;
    if (name === "class-scatter" || name === "class-temperature") {
      view.addSignalListener("pick", (_, value) => { if (value && value.index) pickClass(value.index[0]); });
    }
  };

  const sortTable = (header) => {
    const body = document.querySelector("#table tbody");
    const column = [...header.parentElement.children].indexOf(header);
    const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of header.parentElement.children) other.setAttribute("aria-sort", other === header ? direction : "none");
    const sign = direction === "ascending" ? 1 : -1;
    const key = (row) => row.children[column]?.dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);
      const numbers = Number(x) - Number(y);
      return sign * (Number.isNaN(numbers) ? x.localeCompare(y) : numbers);
    });
    body.append(...rows);
  };

  byId("method").addEventListener("change", (event) => pickMethod(event.target.value));
  byId("class").addEventListener("change", (event) => pickClass(event.target.value));
  byId("class-order").addEventListener("change", () => {
    fillClasses();
    if (byId("class").options.length) pickClass(byId("class").options[0].value);
  });
  const stepClass = (by) => {
    const select = byId("class");
    const place = Math.min(select.options.length - 1, Math.max(0, select.selectedIndex + by));
    if (select.options[place]) pickClass(select.options[place].value);
  };
  byId("class-previous").addEventListener("click", () => stepClass(-1));
  byId("class-next").addEventListener("click", () => stepClass(1));
  byId("show-before").addEventListener("change", (event) => setSignals("reliability", { show_before: event.target.checked }));
  byId("share").addEventListener("input", (event) => { state.share = Number(event.target.value); drawShare(); });
  byId("cut").addEventListener("input", (event) => { state.cut = Number(event.target.value); drawCut(); });
  byId("intervals").addEventListener("change", (event) => byId("table").classList.toggle("with-intervals", event.target.checked));
  for (const header of document.querySelectorAll("#table thead th")) {
    header.querySelector("button").addEventListener("click", () => sortTable(header));
  }
  for (const row of document.querySelectorAll("#table tbody tr")) {
    row.querySelector("th button")?.addEventListener("click", () => pickMethod(row.dataset.method));
  }

  const start = async () => {
    fillClasses();
    if (byId("class").options.length) state.chosen = Number(byId("class").options[0].value);
    for (const name of Object.keys(data.charts)) if (name !== "class-temperature") await embed(name);
    if (state.method) pickMethod(state.method);
    document.documentElement.dataset.ready = "true";
  };
  start();
})();
