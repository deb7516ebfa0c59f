// The page: its head, the strip, the tabs, the selection, the search and the keys.

const VIEWS = [layersView, launchesView, stagesView, missedView, memoryView, codeView, compareView];
const app = { run: null, other: null, view: layersView, launch: null, kind: '', follow: null };
const $ = id => document.getElementById(id);

// paper prepares a canvas for drawing in CSS pixels.
function paper(canvas) {
  const r = devicePixelRatio || 1, w = canvas.clientWidth, hgt = canvas.clientHeight;
  if (!w || !hgt) return null;
  canvas.width = w * r;
  canvas.height = hgt * r;
  const g = canvas.getContext('2d');
  g.scale(r, r);
  return g;
}

// tip shows a text beside the pointer, or hides it.
function tip(e, text) {
  $('tip').hidden = !text;
  if (!text) return;
  $('tip').textContent = text;
  $('tip').style.left = Math.min(e.clientX + 12, innerWidth - $('tip').offsetWidth - 8) + 'px';
  $('tip').style.top = Math.min(e.clientY + 14, innerHeight - $('tip').offsetHeight - 8) + 'px';
}

// head fills the title and the cards.
function head() {
  const run = app.run, t = run.trace, p = t.program, m = t.machine;
  document.title = (t.model || 'fusec') + ' · fusec report';
  $('title').textContent = t.model || 'fusec report';
  $('about').textContent = [t.target && 'for ' + t.target + (t.chip ? '/' + t.chip : ''), t.precision, m && `${m.cpu}, ${plural(m.cores, 'core')}`, t.fusec && 'fusec ' + t.fusec, (t.flags || []).join(' ')].filter(Boolean).join(' · ');
  $('about').title = $('about').textContent;
  const card = (value, text) => h('div', { class: 'card' }, h('b', {}, value), h('small', { title: text }, text));
  const cards = [];
  if (p) {
    cards.push(card(fmtCount(run.inRun.length), `launches; ${fmtCount(t.unfused.launches)} unfused`));
    if (p.prepared_bytes) cards.push(card(fmtCount(run.launches.length - run.inRun.length), `prepared once, ${fmtBytes(p.prepared_bytes)}`));
    cards.push(run.measured ? card(fmtTime(run.total), 'in launches, one run') : run.unit != 'traffic' ? card(run.fmt(run.total), 'estimated, one run') : card('no time', 'the run was not measured'));
    cards.push(card(fmtBytes(run.bytes), `traffic; ${fmtBytes(t.unfused.bytes)} unfused`));
    cards.push(card(fmtFLOPs(run.flops), 'arithmetic' + (run.measured && run.total ? ', ' + fmtRate(run.flops, run.total, 'FLOP/s') : '')));
    cards.push(card(fmtBytes(run.peakBytes), `peak; weights ${fmtBytes(p.param_bytes)}`));
    const least = run.measured ? run.ceiling(run.inRun) : 0;
    if (least) {
      const part = Math.min(1, least / run.total);
      cards.push(h('div', { class: 'card', title: `A large matrix product reaches ${fmtRate(m.flops_per_s, 1e9, 'FLOP/s')} here, a large copy ${fmtRate(m.bytes_per_s, 1e9, 'B/s')}. At these rates the launches would take ${fmtTime(least)}.` },
        h('b', {}, fmtShare(part)), h('small', {}, `of the ceilings; ${fmtTime(least)} at best`), h('span', { class: 'meter' }, h('i', { style: { width: 100 * part + '%' } }))));
    }
    if (p.refusal) cards.push(h('div', { class: 'card bad' }, h('b', {}, 'cannot run'), h('small', {}, p.refusal)));
    cards.push(run.missCount ? h('button', { class: 'card bad', onclick: () => go(missedView) }, h('b', {}, '▼ ' + run.missCount + ' missed'), h('small', {}, plural(run.missed.length, 'cause') + ': ' + [...new Set(run.missed.map(g => g.pattern))].slice(0, 3).join(', '))) : card('0 missed', run.free.length ? 'patterns in part cost nothing' : 'every pattern matched whole'));
  }
  $('cards').replaceChildren(...cards);
  const kinds = new Map();
  for (const l of run.launches) kinds.set(l.look, (kinds.get(l.look) || 0) + l.weight);
  $('legend').replaceChildren(...[...kinds].sort((a, b) => b[1] - a[1]).map(([look, w]) => h('button', { 'aria-pressed': app.kind == look.name, title: 'show only launches of this kind', onclick: () => { app.kind = app.kind == look.name ? '' : look.name; app.view = launchesView; head(); redraw(); } },
    chip(look), look.name + ' ' + (100 * w / (run.total || 1)).toFixed(0) + ' %')), run.missCount ? h('span', { class: 'miss' }, '▼ a fusion was missed here') : '');
}

// strip draws the run: width is time, colour is kind; below it the bytes alive.
function strip() {
  const run = app.run, canvas = $('run');
  canvas.hidden = !run.launches.length;
  const g = paper(canvas);
  if (!g) return;
  const w = canvas.clientWidth, total = run.total || 1, x = [0], top = 26, high = 26, foot = 84;
  for (const l of run.launches) x.push(x[x.length - 1] + l.weight / total * w);
  g.font = '11px system-ui, "Liberation Sans", sans-serif';
  // Bytes alive.
  g.beginPath();
  g.moveTo(0, foot);
  run.launches.forEach((l, i) => { const y = foot - run.alive[i] / (run.peakBytes || 1) * 26; g.lineTo(x[i], y); g.lineTo(x[i + 1], y); });
  g.lineTo(w, foot);
  g.fillStyle = cssColour('--alive');
  g.fill();
  // Launches. Those that are not chosen are paler.
  run.launches.forEach((l, i) => {
    g.globalAlpha = (!app.kind || l.look.name == app.kind) && (!app.launch || app.launch == l || app.launch.layer == l.layer) ? 1 : 0.4;
    g.fillStyle = tone(l.look);
    g.fillRect(x[i], top, Math.max(0.5, x[i + 1] - x[i] - (x[i + 1] - x[i] > 3 ? 0.5 : 0)), high);
  });
  g.globalAlpha = 1;
  g.fillStyle = cssColour('--miss');
  run.launches.forEach((l, i) => {
    if (!l.misses.length) return;
    const m = (x[i] + x[i + 1]) / 2;
    g.beginPath(); g.moveTo(m - 4, top - 7); g.lineTo(m + 4, top - 7); g.lineTo(m, top - 1); g.fill();
  });
  // Phases, where they begin.
  g.fillStyle = g.strokeStyle = cssColour('--faint');
  let free = 0;
  for (const phase of run.phases.length > 1 ? run.phases : []) {
    const i = run.begins(phase), text = phase + ' ' + run.fmt(run.phaseWeight(phase)), wide = g.measureText(text).width;
    if (i) { g.globalAlpha = 0.7; g.beginPath(); g.moveTo(x[i], x[i] < free ? 17 : 4); g.lineTo(x[i], foot); g.stroke(); g.globalAlpha = 1; }
    const from = Math.max(free, x[i] + wide + 4 < w ? x[i] + (i ? 4 : 0) : x[i] - wide - 4);
    if (from + wide > w) continue;
    g.fillText(text, from, 13);
    free = from + wide + 12;
  }
  g.fillText('values alive, at most ' + fmtBytes(run.peakBytes), 3, foot - 3);
  if (app.launch) {
    const l = app.launch;
    g.strokeStyle = cssColour('--ink');
    g.lineWidth = 2;
    g.strokeRect(x[l.i] - 1, top - 2, Math.max(3, x[l.i + 1] - x[l.i] + 2), high + 4);
  }
  const at = e => run.launches[Math.min(run.launches.length - 1, Math.max(0, x.findIndex(v => v > e.offsetX) - 1))];
  canvas.onmousemove = e => { const l = at(e); tip(e, `#${l.n} ${full(l)}\n${l.kind}, ${l.phase}, ${run.fmt(l.weight)}, ${fmtBytes(run.alive[l.i])} alive` + (l.misses.length ? '\nmissed: ' + l.misses[0].reason : '')); };
  canvas.onmouseleave = () => tip();
  canvas.onclick = e => select(at(e));
  canvas.setAttribute('aria-label', `the run in order: ${plural(run.launches.length, 'launch', 'launches')}, ${run.fmt(run.total)}`);
}

// side shows the selected launch.
function side() {
  const run = app.run, l = app.launch;
  document.body.classList.toggle('plain', !run.launches.length);
  $('side').classList.toggle('empty', !l);
  if (!l) {
    $('side').replaceChildren(h('h2', {}, 'No launch is chosen'), h('p', { class: 'faint' }, 'Click a launch, a value or the strip.'),
      h('h3', {}, 'Keys'), h('dl', {}, [['/', 'find'], ['1 … ' + VIEWS.length, 'views'], ['j, k', 'next and previous launch'], ['Esc', 'no launch']].map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)])));
    return;
  }
  const links = list => list.length ? [...new Set(list)].slice(0, 8).map(x => h('div', {}, launchLink(x))).concat(list.length > 8 ? h('small', {}, 'and ' + (list.length - 8) + ' more') : []) : null;
  const weights = [...new Set(l.reads)].map(b => run.buffers[b]).filter(b => b.role == 'param' || b.role == 'state');
  const m = run.trace.machine, least = run.measured ? run.ceiling([l]) : 0;
  const bound = m && m.flops_per_s && m.bytes_per_s ? (l.flops / m.flops_per_s > l.bytes / m.bytes_per_s ? 'arithmetic' : 'memory') : '';
  const facts = [['time', run.measured ? `${fmtTime(l.weight)}, ${fmtShare(l.weight / (run.total || 1))} of the run` : ''], ...(l.estimates || []).map(m => ['estimated ' + m.name, fmtMeasure(m)]), ...(l.counts || []).map(m => [m.name, fmtMeasure(m)]),
    ['arithmetic', fmtFLOPs(l.flops) + (run.measured && l.weight && l.flops ? ', ' + fmtRate(l.flops, l.weight, 'FLOP/s') : '')], ['traffic', fmtBytes(l.bytes) + (run.measured && l.weight ? ', ' + fmtRate(l.bytes, l.weight, 'B/s') : '')],
    ['bound by', bound && bound + (l.bytes ? ` (${(l.flops / l.bytes).toPrecision(2)} FLOP a byte)` : '') + (least && l.weight ? `, at ${fmtShare(Math.min(1, least / l.weight))} of the ceiling` : '')],
    ['result', l.result + ', ' + fmtBytes(l.size)], ['kernel', l.kernel != 'fusion' ? l.kernel : ''], ['device', l.device + (l.reason ? ': ' + l.reason : '')],
    ['weights', weights.length ? weights.slice(0, 8).map(b => h('div', {}, b.name, ' ', h('small', {}, b.type))) : ''], ['reads from', links(l.from)], ['read by', links(l.to) || 'outputs only']];
  const parts = [h('h2', {}, chip(l.look), `#${l.n} ${l.label}`), h('p', { class: 'faint' }, [l.layer, l.kind, run.phases.length > 1 ? l.phase : ''].filter(Boolean).join(', '), ' · ', h('a', { href: '#launch-' + l.n }, 'link')),
    l.misses.slice(0, 4).map(x => h('div', { class: 'note' }, h('b', {}, 'Not fused: ' + x.pattern), h('div', {}, x.reason), h('small', {}, 'one launch would save ' + (x.saves.launches ? plural(x.saves.launches, 'launch', 'launches') + ', ' + fmtBytes(x.saves.bytes) : 'nothing that can be estimated') + (x.time ? ', about ' + fmtTime(x.time) : '')))), l.misses.length > 4 ? h('small', {}, `and ${l.misses.length - 4} more missed here`) : null,
    h('p', { class: 'mono wrap' }, run.formula(l)), h('dl', {}, facts.filter(f => f[1]).map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)])),
    h('h3', {}, `Computes ${plural(l.origins.length, 'node')} of yours`), h('ul', { class: 'list mono wrap' }, l.origins.slice(0, 12).map(o => h('li', {}, o.name || '', ' ', h('small', {}, o.pos || ''))), l.origins.length > 12 ? h('li', {}, h('small', {}, `and ${l.origins.length - 12} more`)) : null),
    h('p', {}, h('button', { class: 'more', onclick: () => go(stagesView) }, 'follow through the stages'), ' · ', h('button', { class: 'more', onclick: () => go(codeView) }, 'its code'))];
  const row = run.rows.find(r => r.members && r.launches.includes(l));
  if (row) {
    const same = row.launches.filter(x => x.label == l.label && x.phase == l.phase && x.kind == l.kind), most = Math.max(1, ...same.map(x => x.weight));
    if (same.length > 1) parts.push(h('h3', {}, 'The same in all layers'), same.slice(0, 96).map(x => h('div', { style: { display: 'grid', 'grid-template-columns': '80px 1fr 64px', gap: '6px', 'align-items': 'center' } },
      h('a', { href: '#launch-' + x.n }, x.layer), h('i', { style: { height: '9px', width: 100 * x.weight / most + '%', background: tone(x.look), 'border-radius': '2px' } }), h('small', {}, run.fmt(x.weight)))));
  }
  $('side').replaceChildren(...parts.flat(2).filter(Boolean));
  $('side').scrollTop = 0;
}

// redraw shows the current view.
function redraw() {
  const scroll = $('main').scrollTop, focus = document.activeElement && document.activeElement.closest('#tabs');
  $('tabs').replaceChildren(...VIEWS.map(v => h('button', { role: 'tab', id: 'tab-' + v.name.toLowerCase(), 'aria-selected': v == app.view, 'aria-controls': 'main', tabindex: v == app.view ? 0 : -1, onclick: () => go(v) },
    v.name, v == missedView && app.run.missCount ? h('span', { class: 'miss' }, app.run.missCount) : null)));
  if (focus) $('tab-' + app.view.name.toLowerCase()).focus();
  const shown = app.view.show(app.run, app, app.other);
  $('main').replaceChildren(...[shown].flat(3).filter(Boolean));
  $('main').scrollTop = scroll;
  if (app.view.shown) app.view.shown();
  strip();
  side();
}

// go shows a view.
function go(view) {
  app.view = view;
  history.replaceState(null, '', '#' + (app.launch && view == layersView ? 'launch-' + app.launch.n : view.name.toLowerCase()));
  $('main').scrollTop = 0;
  redraw();
}

// select chooses a launch, or none.
function select(l, keepAddress) {
  if (l && app.launch == l) return;
  app.launch = l;
  app.follow = null;
  if (!keepAddress) history.replaceState(null, '', l ? '#launch-' + l.n : '#' + app.view.name.toLowerCase());
  redraw();
  const row = l && document.querySelector(`#main [data-launch="${l.n}"]`);
  if (row) row.scrollIntoView({ block: 'nearest' });
}

// address follows a link: #launch-12, or the name of a view.
function address() {
  const name = decodeURIComponent(location.hash.slice(1)), m = /^launch-(\d+)$/.exec(name);
  const view = VIEWS.find(v => v.name.toLowerCase() == name);
  if (m && app.run.launches[m[1] - 1]) select(app.run.launches[m[1] - 1], true);
  else if (view) { app.view = view; redraw(); } else redraw();
}

// search lists launches, the user's nodes, weights and lines that contain all words of a text.
function search(text) {
  const words = text.toLowerCase().replace(/^\//, '').split(/\s+/).filter(Boolean), run = app.run, found = [], most = 40;
  if (!words.length) return found;
  const fits = s => { s = s.toLowerCase(); return words.every(w => s.includes(w)); };
  const launchOf = new Map();
  for (const l of run.launches) for (const o of l.origins) if (!launchOf.has(o)) launchOf.set(o, l);
  for (const l of run.launches) if (found.length < most && fits(`#${l.n} ${l.layer} ${l.label} ${l.name || ''} ${l.kind}`)) found.push({ what: 'launch', text: full(l), more: '#' + l.n + ' ' + run.fmt(l.weight), launch: l });
  run.buffers.forEach((b, i) => {
    if (found.length >= 2 * most || !['param', 'state', 'input'].includes(b.role) || !fits(b.name)) return;
    found.push({ what: b.role == 'param' ? 'weight' : b.role, text: b.name, more: b.type, launch: run.launches.find(l => l.reads.includes(i) || l.writes.includes(i)) });
  });
  for (const o of run.trace.origins) if (found.length < 3 * most && fits((o.name || '') + ' ' + (o.pos || ''))) found.push({ what: o.name && fits(o.name) ? 'node' : 'line', text: o.name || o.pos, more: o.pos || '', launch: launchOf.get(o), origin: o });
  for (const [pos, line] of Object.entries(run.trace.lines || {})) if (found.length < 4 * most && fits(line)) {
    const o = run.trace.origins.find(x => x.pos == pos);
    if (o) found.push({ what: 'line', text: line.trim(), more: pos, launch: launchOf.get(o), origin: o });
  }
  return found;
}

// finder is the search field with its list.
function finder() {
  const field = $('find'), list = $('found');
  let found = [], at = 0;
  const choose = f => {
    if (!f) return;
    list.hidden = true;
    field.blur();
    app.launch = f.launch || app.launch;
    app.follow = f.origin ? [f.origin] : null;
    if (!f.launch) app.view = stagesView;
    history.replaceState(null, '', f.launch ? '#launch-' + f.launch.n : '#stages');
    redraw();
  };
  const show = () => {
    list.hidden = !field.value.trim();
    field.setAttribute('aria-expanded', String(!list.hidden));
    list.replaceChildren(...(found.length ? found.map((f, i) => h('li', { role: 'option', id: 'found-' + i, 'aria-selected': i == at, onmousedown: e => { e.preventDefault(); choose(f); } }, h('small', {}, f.what), h('span', { title: f.text }, f.text), h('small', {}, f.more))) : [h('li', {}, h('small', {}), 'nothing has that name')]));
    field.setAttribute('aria-activedescendant', found.length ? 'found-' + at : '');
    const row = list.children[at];
    if (row) row.scrollIntoView({ block: 'nearest' });
  };
  field.addEventListener('input', () => { found = search(field.value); at = 0; show(); });
  field.addEventListener('blur', () => { list.hidden = true; });
  field.addEventListener('focus', () => { if (field.value.trim()) show(); });
  field.addEventListener('keydown', e => {
    if (e.key == 'ArrowDown') at = Math.min(at + 1, found.length - 1);
    else if (e.key == 'ArrowUp') at = Math.max(at - 1, 0);
    else if (e.key == 'Enter') { choose(found[at]); return; } else if (e.key == 'Escape') { field.value = ''; field.blur(); return; } else return;
    e.preventDefault();
    show();
  });
}

// keys of the page.
function keys(e) {
  if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
  const list = app.run.launches, tab = e.target.closest && e.target.closest('#tabs'), i = VIEWS.indexOf(app.view);
  if (e.key == '/') { e.preventDefault(); $('find').focus(); $('find').select(); }
  else if (tab && e.key == 'ArrowRight') go(VIEWS[(i + 1) % VIEWS.length]);
  else if (tab && e.key == 'ArrowLeft') go(VIEWS[(i + VIEWS.length - 1) % VIEWS.length]);
  else if (e.key >= '1' && e.key <= String(VIEWS.length)) go(VIEWS[e.key - 1]);
  else if (e.key == 'j' && list.length) select(list[app.launch ? Math.min(app.launch.i + 1, list.length - 1) : 0]);
  else if (e.key == 'k' && list.length) select(list[app.launch ? Math.max(app.launch.i - 1, 0) : list.length - 1]);
  else if (e.key == 'Escape' && app.launch) select(null);
}

async function start() {
  let data;
  try { data = await unpack(); } catch (err) {
    $('main').replaceChildren(h('p', {}, 'The data of this page cannot be read: ' + err.message + '. It needs a browser from 2023 or later.'));
    return;
  }
  const runs = data.traces.map(t => new Run(t, data.kinds));
  [app.run, app.other] = runs;
  if (pipelineView.of(app.run)) VIEWS.push(pipelineView);
  if (data.live) {
    VIEWS.unshift(trainingView);
    app.view = trainingView;
    trainingView.ask();
  }
  head();
  finder();
  address();
  addEventListener('hashchange', address);
  addEventListener('keydown', keys);
  addEventListener('resize', () => { strip(); if (app.view == memoryView) redraw(); });
  dark.addEventListener('change', () => { head(); redraw(); });
  document.documentElement.dataset.ready = 'true';
}
start();
