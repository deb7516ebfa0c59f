// The views. Each makes elements from a Run; text from files is only ever set as text.

// h makes an element. Attributes that are functions are listeners; style is an object; children that are null are left out.
function h(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (v === undefined || v === null || v === false && !k.startsWith('aria-')) continue;
    if (typeof v == 'function') e.addEventListener(k.slice(2), v);
    else if (k == 'style') for (const [p, x] of Object.entries(v)) e.style.setProperty(p, x);
    else if (k == 'class') e.className = v;
    else e.setAttribute(k, v === true && !k.startsWith('aria-') ? '' : v);
  }
  for (const c of children.flat(3)) if (c !== null && c !== undefined && c !== false) e.append(c instanceof Node ? c : String(c));
  return e;
}

// svg is h for a picture.
function svg(tag, attrs, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const dark = matchMedia('(prefers-color-scheme: dark)');

// tone is a kind's colour, lighter on dark paper.
function tone(look) {
  const c = look.colour;
  if (!dark.matches) return c;
  return '#' + [1, 3, 5].map(i => Math.round(parseInt(c.slice(i, i + 2), 16) * 0.72 + 255 * 0.28).toString(16).padStart(2, '0')).join('');
}
const cssColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const chip = look => h('i', { class: 'chip', style: { background: tone(look) } });

// grow fills an element with a row for each item, a few hundred at a time as they come into sight.
const STEP = 300;
function grow(parent, items, row, least) {
  let at = 0;
  const sentinel = h(parent.tagName == 'TBODY' ? 'tr' : 'div', {});
  const more = n => {
    const end = Math.min(items.length, Math.max(at + STEP, n || 0));
    const rows = document.createDocumentFragment();
    for (; at < end; at++) rows.append(row(items[at], at));
    parent.insertBefore(rows, sentinel);
    if (at == items.length) { watch.disconnect(); sentinel.remove(); }
  };
  const watch = new IntersectionObserver(seen => { if (seen.some(s => s.isIntersecting)) more(); }, { rootMargin: '600px' });
  parent.append(sentinel);
  watch.observe(sentinel);
  more(least);
  addEventListener('beforeprint', () => { if (at < items.length) more(items.length); }, { once: true });
}

// launchLink leads to a launch.
const launchLink = (l, text) => h('a', { href: '#launch-' + l.n }, text || '#' + l.n + ' ' + full(l));
const full = l => (l.layer ? l.layer + ' › ' : '') + l.label;
const shown = name => name || (app.run.rows.length > 1 ? 'the rest' : 'the model');

// stack is a bar of the kinds of some launches.
function stack(run, list, share) {
  const by = new Map();
  for (const l of list) by.set(l.look, (by.get(l.look) || 0) + l.weight);
  const total = sum(list, l => l.weight) || 1;
  return h('div', { class: 'bar', style: { width: Math.max(1, 100 * share) + '%' } },
    [...by].sort((a, b) => b[1] - a[1]).map(([look, w]) => h('i', { title: look.name + ' ' + run.fmt(w), style: { width: 100 * w / total + '%', background: tone(look) } })));
}

// ---- Layers

const layersView = {
  name: 'Layers',
  open: new Set(), // rows whose members are shown
  row: null,       // the layer that is shown beside
  show(run, state) {
    if (!run.launches.length) return empty(run);
    if (state.launch && (!this.row || !this.row.launches.includes(state.launch))) this.row = run.layerOf.get(state.launch.layer);
    if (!this.row || !(run.rows.includes(this.row) || run.layerOf.get(this.row.name) == this.row)) this.row = heaviest(run);
    return h('div', { class: 'columns' }, h('section', {}, this.table(run)), this.program(run, this.row.members ? this.row.members[0] : this.row, this.row));
  },
  table(run) {
    const weightOf = (row, p) => sum(row.launches, l => l.phase == p ? l.weight : 0);
    const most = Math.max(1, ...run.rows.map(r => Math.max(...run.phases.map(p => weightOf(r, p)))));
    // Bars of layers that are part of a row have a scale of their own, or they would be too short to compare.
    const mostMember = Math.max(1, ...run.rows.filter(r => r.members).flatMap(r => r.members.flatMap(m => run.phases.map(p => weightOf(m, p)))));
    const line = (row, top, member) => {
      const miss = sum(row.launches, l => l.misses.length);
      return h('tr', { class: 'row' + (this.row == row ? ' chosen' : ''), onclick: e => { if (!e.target.closest('button')) pick(row); } },
        h('td', { style: member ? { 'padding-left': '22px' } : {} }, h('button', { onclick: () => pick(row) }, h('b', {}, shown(row.name))), row.members && h('small', {}, ' ×' + row.members.length),
          miss ? h('span', { class: 'miss', title: plural(miss, 'missed fusion') }, ' ▼' + miss) : null,
          row.members && h('div', {}, sparks(run, row, pick), ' ', h('button', { class: 'more', 'aria-expanded': this.open.has(row), onclick: () => { this.open.has(row) ? this.open.delete(row) : this.open.add(row); redraw(); } },
            this.open.has(row) ? '▾ fold' : '▸ show all'), row.alike ? null : h('span', { class: 'miss' }, ' not all alike'))),
        run.phases.map(p => { const list = row.launches.filter(l => l.phase == p); return h('td', {}, list.length ? [stack(run, list, weightOf(row, p) / top), h('small', {}, run.fmt(weightOf(row, p)) + ' · ' + list.length)] : null); }),
        h('td', { class: 'n' }, fmtShare(sum(row.launches, l => l.weight) / (run.total || 1))));
    };
    const pick = row => { this.row = row; if (app.launch && !row.launches.includes(app.launch)) select(null); redraw(); };
    return [h('h2', {}, 'Where the ' + run.unit + ' goes', h('small', {}, 'layers × phases: ' + run.unit + ' · launches; layers that repeat are one row, with a bar for each')),
      h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, 'layer'), run.phases.map(p => h('th', {}, p)), h('th', { class: 'n' }, 'share'))),
        h('tbody', {}, run.rows.map(r => [line(r, most), r.members && this.open.has(r) ? r.members.map(m => line(m, mostMember, true)) : null])))];
  },
  // program lists the launches of a layer in order, with an arc from each value's launch to its readers.
  program(run, layer, row) {
    const list = layer.launches, most = Math.max(1, ...list.map(l => l.weight)), at = new Map(list.map((l, i) => [l, i]));
    const place = []; // the line of each launch; phases have lines, too
    const lines = [];
    let phase = null;
    for (const l of list) {
      if (l.phase != phase && run.phases.length > 1) lines.push(phase = l.phase);
      place.push(lines.length);
      lines.push(l);
    }
    const H = 23, edges = [];
    if (list.length <= 250) for (const l of list) for (const f of new Set(l.from)) if (at.has(f)) edges.push([place[at.get(f)], place[at.get(l)], f, l]);
    edges.sort((a, b) => (a[1] - a[0]) - (b[1] - b[0]));
    const lanes = [];
    const laneOf = edges.map(([a, b]) => {
      if (b - a == 1) return 0;
      for (let k = 1; k < 12; k++) {
        lanes[k] = lanes[k] || [];
        if (lanes[k].every(([c, d]) => d <= a || c >= b)) { lanes[k].push([a, b]); return k; }
      }
      return 12;
    });
    const W = Math.max(1, ...laneOf) * 6 + 14, y = i => i * H + H / 2;
    const pic = svg('svg', { width: W, height: lines.length * H, 'aria-hidden': 'true' });
    edges.forEach(([a, b, f, l], e) => {
      const on = app.launch == f || app.launch == l, x0 = W - 6, x = x0 - laneOf[e] * 6;
      pic.append(svg('path', { d: laneOf[e] ? `M${x0} ${y(a)} C${x} ${y(a)} ${x} ${y(a)} ${x} ${y(a) + 8} L${x} ${y(b) - 8} C${x} ${y(b)} ${x} ${y(b)} ${x0} ${y(b)}` : `M${x0} ${y(a)} L${x0} ${y(b)}`,
        fill: 'none', stroke: cssColour(on ? '--ink' : '--line'), 'stroke-width': on ? 2 : 1.3 }));
    });
    list.forEach((l, i) => pic.append(svg('circle', { cx: W - 6, cy: y(place[i]), r: 4, fill: tone(l.look) })));
    const rows = h('div', { style: { 'margin-left': W + 4 + 'px' } });
    grow(rows, lines, l => typeof l == 'string' ? h('div', { class: 'phase' }, l) :
      h('a', { href: '#launch-' + l.n, 'data-launch': l.n, class: app.launch == l ? 'chosen' : '' },
        h('small', { style: { 'text-align': 'right' } }, l.n), h('b', { title: l.name || l.label }, l.label),
        h('span', { class: 'mono faint', title: run.formula(l) }, l.misses.length ? h('span', { class: 'miss', title: l.misses[0].reason }, '▼ missed ') : null, run.formula(l)),
        h('span', { class: 'mono faint', style: { 'text-align': 'right' }, title: l.result }, l.short),
        h('span', { class: 'time' }, h('i', { style: { width: Math.max(1, 52 * l.weight / most) + 'px', background: tone(l.look) } }), h('small', {}, run.fmt(l.weight)))),
      app.launch && at.has(app.launch) ? place[at.get(app.launch)] + 1 : 0);
    return h('section', {}, h('h2', {}, shown(layer.name), h('small', {}, (row.members && row != layer ? `one of ${row.members.length}${row.alike ? ' alike' : ''}, ` : '') + plural(list.length, 'launch', 'launches') + ' in order; arcs lead from a value to its readers')),
      h('div', { class: 'program' }, pic, rows));
  },
};

const heaviest = run => run.rows.reduce((a, r) => sum(r.launches, l => l.weight) > sum(a.launches, l => l.weight) ? r : a, run.rows[0]);

// sparks are a small bar for each layer of a row; one that departs from the median is marked.
function sparks(run, row, pick) {
  const values = row.members.map(m => sum(m.launches, l => l.weight)), most = Math.max(1, ...values);
  const median = [...values].sort((a, b) => a - b)[values.length >> 1];
  return h('span', { class: 'spark' }, row.members.map((m, i) => {
    const odd = Math.abs(values[i] - median) > 0.2 * median || m.launches.some(l => l.misses.length) != row.members[0].launches.some(l => l.misses.length) && sum(row.members, x => x.launches.some(l => l.misses.length) ? 1 : 0) * 2 < row.members.length && m.launches.some(l => l.misses.length);
    return h('button', { class: odd ? 'odd' : '', title: m.name + ': ' + run.fmt(values[i]), 'aria-label': m.name, style: { height: 2 + 18 * values[i] / most + 'px' }, onclick: () => pick(m) });
  }));
}

// ---- Launches

const launchesView = {
  name: 'Launches',
  by: 'weight', down: true,
  show(run) {
    if (!run.launches.length) return empty(run);
    const head = { n: '#', layer: 'layer', label: 'launch', kind: 'kind', phase: 'phase', weight: run.unit, share: 'share', flops: 'arithmetic', rate: 'FLOP/s', bytes: 'traffic', band: 'B/s', size: 'result', miss: 'missed' };
    const value = {
      share: l => l.weight, rate: l => run.measured && l.weight ? l.flops / l.weight : 0, band: l => run.measured && l.weight ? l.bytes / l.weight : 0, miss: l => l.misses.length };
    const columns = Object.keys(head).filter(c => run.measured || c != 'rate' && c != 'band').filter(c => c != 'bytes' || run.unit != 'traffic');
    const numeric = c => !['layer', 'label', 'kind', 'phase'].includes(c);
    const get = value[this.by] || (l => l[this.by]);
    const list = run.launches.filter(l => !app.kind || l.look.name == app.kind).sort((a, b) => {
      const x = get(a), y = get(b);
      return (typeof x == 'string' ? x.localeCompare(y, 'en', { numeric: true }) : x - y) * (this.down ? -1 : 1) || a.i - b.i;
    });
    const body = h('tbody');
    grow(body, list, l => h('tr', { class: 'row' + (app.launch == l ? ' chosen' : ''), 'data-launch': l.n, onclick: () => select(l) }, columns.map(c => ({
      n: () => h('td', { class: 'n' }, h('a', { href: '#launch-' + l.n }, l.n)),
      layer: () => h('td', { class: 'nowrap' }, l.layer), label: () => h('td', { class: 'wrap' }, l.label), kind: () => h('td', { class: 'nowrap' }, chip(l.look), l.kind), phase: () => h('td', {}, l.phase),
      weight: () => h('td', { class: 'n' }, run.fmt(l.weight)), share: () => h('td', { class: 'n' }, fmtShare(l.weight / (run.total || 1))),
      flops: () => h('td', { class: 'n' }, fmtFLOPs(l.flops)), rate: () => h('td', { class: 'n' }, l.weight ? fmtRate(l.flops, l.weight, 'FLOP/s') : ''),
      bytes: () => h('td', { class: 'n' }, fmtBytes(l.bytes)), band: () => h('td', { class: 'n' }, l.weight ? fmtRate(l.bytes, l.weight, 'B/s') : ''),
      size: () => h('td', { class: 'mono nowrap', title: l.result }, l.short), miss: () => h('td', { class: 'miss' }, l.misses.length ? '▼' + (l.misses.length > 1 ? l.misses.length : '') : ''),
    }[c]()))), app.launch ? list.indexOf(app.launch) + 1 : 0);
    return h('section', {}, h('h2', {}, plural(list.length, 'launch', 'launches'), h('small', {}, app.kind ? 'of kind ' + app.kind + '; its button above shows all again' : 'a column’s head sorts by it; a kind’s button above shows only these')),
      h('table', {}, h('thead', {}, h('tr', {}, columns.map(c => h('th', { class: numeric(c) && c != 'miss' ? 'n' : '', 'aria-sort': this.by == c ? (this.down ? 'descending' : 'ascending') : 'none' },
        h('button', { onclick: () => { this.down = this.by == c ? !this.down : numeric(c) && c != 'n'; this.by = c; redraw(); } }, head[c] + (this.by == c ? (this.down ? ' ↓' : ' ↑') : '')))))), body));
  },
};

// ---- Stages

const stagesView = {
  name: 'Stages',
  stage: null,
  show(run, state) {
    const changes = run.changes(), cards = [];
    let same = [];
    const fold = () => {
      if (same.length) cards.push(h('div', { class: 'stage same', title: same.map(s => s.name).join(', ') }, same.length + ' unchanged', same.slice(0, 6).map(s => h('div', {}, h('small', {}, s.name)))));
      same = [];
    };
    run.trace.stages.forEach((s, i) => {
      if (changes[i].same && !(s.misses || []).length && !(s.notes || []).length) { same.push(s); return; }
      fold();
      const missed = sum(run.missed, g => g.stage == s.name ? sum(g.list, m => m.counts ? 1 : 0) : 0), free = (s.misses || []).length - missed;
      cards.push(h('button', { class: 'stage' + (this.stage == i ? ' chosen' : ''), 'aria-pressed': this.stage == i, onclick: () => { this.stage = this.stage == i ? null : i; redraw(); } },
        h('b', {}, s.name), h('div', {}, h('small', {}, s.doc)), h('div', {}, plural(s.nodes, 'operation')), h('div', {}, plural(s.launches, 'launch', 'launches')), h('div', {}, fmtBytes(s.bytes) + ' of traffic'),
        (s.matches || []).length ? h('div', {}, plural(s.matches.length, 'match', 'matches')) : null,
        missed ? h('div', { class: 'miss' }, '▼ ' + missed + ' missed') : null,
        free ? h('div', { title: 'patterns that matched in part and cost nothing' }, h('small', {}, fmtCount(free) + ' in part')) : null, s.took_ns ? h('div', {}, h('small', {}, 'took ' + fmtTime(s.took_ns))) : null));
    });
    fold();
    const followed = this.followed(run, state), above = state.launch || app.follow;
    return [above && followed, h('section', {}, h('h2', {}, 'What each pass changed', h('small', {}, 'passes that changed nothing are folded; a stage shows its changes')), h('div', { class: 'stages' }, cards)),
      this.stage !== null && run.trace.stages[this.stage] ? this.detail(run, this.stage) : null, !above && followed];
  },
  detail(run, i) {
    const s = run.trace.stages[i], c = run.changes()[i];
    const counts = (m, sign) => [...m].sort((a, b) => b[1] - a[1]).slice(0, 40).map(([op, n]) => h('span', { class: 'tag' }, sign + n + ' ' + op));
    const patterns = new Map();
    for (const m of s.matches || []) {
      const key = (m.pattern || s.name) + (m.kind ? ' → ' + m.kind : '');
      if (!patterns.has(key)) patterns.set(key, []);
      patterns.get(key).push(m);
    }
    return h('section', {}, h('h2', {}, s.name, h('small', {}, s.doc)),
      c.removed.size ? [h('h3', {}, 'Operations that it removed'), counts(c.removed, '−')] : null, c.added.size ? [h('h3', {}, i ? 'Operations that it added' : 'Operations'), counts(c.added, i ? '+' : '')] : null,
      c.changed ? h('p', {}, plural(c.changed, 'operation'), ' with other operands or names') : null,
      patterns.size ? [h('h3', {}, 'Matches'), h('table', {}, h('tbody', {}, [...patterns].map(([p, list]) => h('tr', {}, h('td', { class: 'n' }, '×' + list.length), h('td', {}, p), h('td', { class: 'wrap' }, h('small', {}, 'such as ' + (run.origins(list[0].origin).map(o => o.name || o.pos).slice(0, 6).join(', ') || 'node ' + list[0].node)))))))] : null,
      (s.notes || []).length ? [h('h3', {}, 'Notes'), h('ul', { class: 'list' }, s.notes.slice(0, 200).map(n => h('li', { class: 'wrap' }, n.text)))] : null);
  },
  // followed shows what becomes of the user's nodes of the chosen launch, or of one that was searched for.
  followed(run, state) {
    const l = state.launch, origins = app.follow || (l ? l.origins : []);
    if (!origins.length) return h('section', {}, h('h2', {}, 'A node, from stage to stage'), h('p', { class: 'faint' }, 'Choose a launch, or search for a node with /, to see what each pass makes of it.'));
    const out = h('div', { class: 'follow' });
    let before = '', skipped = [];
    const skip = () => { if (skipped.length) out.append(h('div', {}, h('small', {}, skipped.length > 2 ? skipped[0] + ' … ' + skipped[skipped.length - 1] : skipped.join(', '))), h('div', {}, h('small', {}, 'unchanged'))); skipped = []; };
    for (const { stage, nodes } of run.follow(origins)) {
      const key = nodes.map(n => n.id + ' ' + this.word(run, n)).join();
      if (key == before && stage.index > 0) { skipped.push(stage.name); continue; }
      skip();
      before = key;
      const by = new Map(); // like nodes are one tag
      for (const n of nodes) {
        const w = this.word(run, n);
        if (!by.has(w)) by.set(w, []);
        by.get(w).push(n);
      }
      out.append(h('div', {}, h('b', {}, stage.name)), h('div', {}, [...by].slice(0, 60).map(([w, list]) => h('span', { class: 'tag', title: list.slice(0, 12).map(n => (n.name || '%' + n.id) + ' ' + n.type).join('\n'), style: { 'border-left-color': tone(run.lookOfNode(list[0])) } }, w, list.length > 1 ? h('small', {}, ' ×' + list.length) : null)), by.size ? null : h('small', {}, 'nothing yet')));
    }
    skip();
    const names = origins.map(o => o.name || o.pos).filter(Boolean);
    return h('section', {}, h('h2', {}, 'From stage to stage: ', names.slice(0, 4).join(', ') + (names.length > 4 ? ' and ' + (names.length - 4) + ' more' : ''), h('small', {}, 'the operations that compute ' + (origins.length > 1 ? 'these nodes' : 'this node') + '; colour is kind')), out);
  },
  word: (run, n) => run.opName(n) + (n.name ? ' “' + n.name + '”' : ''),
};

// ---- Missed

const missedView = {
  name: 'Missed',
  show(run) {
    return [run.missed.length ? h('p', { class: 'faint' }, 'Patterns that matched in part, by the condition that failed. What a match would save is an estimate: the launches, and the traffic of the values that they pass to each other.')
      : h('section', {}, h('h2', {}, 'No fusion was missed'), h('p', {}, run.free.length ? 'Patterns that matched in part cost neither a launch nor traffic.' : 'Every pattern that matched in part matched whole.')),
      run.missed.map(g => this.group(run, g)),
      run.free.length ? h('details', {}, h('summary', {}, `${plural(sum(run.free, g => g.list.length), 'pattern')} matched in part and cost nothing`), run.free.map(g => this.group(run, g))) : null];
  },
  group(run, g) {
        const rows = h('tbody');
        grow(rows, g.list, m => h('tr', { class: m.of.length ? 'row' : '', onclick: e => { if (m.of.length && !e.target.closest('a')) select(m.of[0]); } },
          h('td', { class: 'wrap' }, m.at), h('td', { class: 'wrap' }, m.of.length ? m.of.slice(0, 5).map((l, i) => [i ? ', ' : '', h('a', { href: '#launch-' + l.n, title: full(l) }, '#' + l.n)]) : 'none is left', m.of.length > 5 ? ' …' : ''),
          h('td', { class: 'n' }, m.saves.launches ? plural(m.saves.launches, 'launch', 'launches') : ''), h('td', { class: 'n' }, m.saves.bytes ? fmtBytes(m.saves.bytes) : ''), run.measured ? h('td', { class: 'n' }, m.time ? '≈ ' + fmtTime(m.time) : '') : null));
        return h('section', {}, h('h2', {}, h('span', { class: g.counts ? 'miss' : '' }, (g.counts ? '▼ ' : '') + g.pattern + (g.list.length > 1 ? ' ×' + g.list.length : '')), h('small', {}, (g.counts ? 'missed in ' : 'matched in part in ') + g.stage)),
          h('p', { class: g.counts ? 'note' : 'note free' }, g.list[0].reason), h('p', {}, 'Would save: ', h('b', {}, [g.saves.launches ? plural(g.saves.launches, 'launch', 'launches') : '', g.saves.bytes ? fmtBytes(g.saves.bytes) + ' of traffic' : '', g.time ? 'about ' + fmtTime(g.time) + ', ' + fmtShare(g.time / run.total) + ' of the run' : ''].filter(Boolean).join(', ') || 'nothing')),
          h('details', { open: run.missed.length == 1 || g.list.length < 4 }, h('summary', {}, plural(g.list.length, 'place')),
            h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, 'stopped at'), h('th', {}, 'launches'), h('th', { class: 'n' }, 'saves'), h('th', { class: 'n' }, 'traffic'), run.measured ? h('th', { class: 'n' }, 'time') : null)), rows)));
  },
};

// ---- Memory

const memoryView = {
  name: 'Memory',
  show(run) {
    const p = run.trace.program;
    if (!p || !run.launches.length) return empty(run);
    const canvas = h('canvas', { id: 'map', role: 'img', 'aria-label': 'the arena: each temporary value by its place and its lifetime' });
    const at = run.launches[run.peak];
    const holders = run.temps.filter(b => b.first <= run.peak && b.last >= run.peak).sort((a, b) => b.bytes - a.bytes);
    const body = h('tbody');
    grow(body, holders, b => h('tr', { class: 'row', onclick: () => select(run.launches[b.first]) }, h('td', { class: 'wrap' }, b.name), h('td', { class: 'mono' }, b.type), h('td', { class: 'n' }, fmtBytes(b.bytes)),
      h('td', { class: 'n' }, fmtShare(b.bytes / (run.peakBytes || 1))), h('td', {}, launchLink(run.launches[b.first])), h('td', {}, launchLink(run.launches[b.last]))));
    const roles = new Map();
    for (const b of run.buffers) { const r = roles.get(b.role) || { n: 0, bytes: 0 }; r.n++; r.bytes += b.bytes; roles.set(b.role, r); }
    this.shown = () => this.draw(run, canvas);
    return [h('section', {}, h('h2', {}, 'The arena', h('small', {}, `${fmtBytes(p.arena_bytes)} for temporary values; without sharing they would take ${fmtBytes(p.buffer_bytes)}. From left to right the run, launch by launch; from bottom to top the place; colour is the kind of the launch that writes`)), canvas),
      h('section', {}, h('h2', {}, 'Who holds the peak', h('small', {}, `${fmtBytes(run.peakBytes)} in ${plural(holders.length, 'value')} are alive in `), h('small', {}, launchLink(at))),
        h('table', {}, h('thead', {}, h('tr', {}, ['value', 'type'].map(x => h('th', {}, x)), h('th', { class: 'n' }, 'size'), h('th', { class: 'n' }, 'share'), h('th', {}, 'written by'), h('th', {}, 'last read by'))), body)),
      h('section', {}, h('h2', {}, 'All memory'), h('table', {}, h('tbody', {}, [...roles].sort((a, b) => b[1].bytes - a[1].bytes).map(([role, r]) => h('tr', {}, h('td', {}, { param: 'parameters', state: 'states, such as moments', const: 'constants', input: 'inputs', output: 'outputs', temp: 'temporary values, without sharing', prepared: 'prepared values' }[role] || role), h('td', { class: 'n' }, plural(r.n, 'buffer')), h('td', { class: 'n' }, fmtBytes(r.bytes)))))))];
  },
  draw(run, canvas) {
    const g = paper(canvas), n = run.launches.length, arena = run.trace.program.arena_bytes || 1;
    if (!g) return;
    const w = canvas.clientWidth, hgt = canvas.clientHeight, x = i => i / n * w, y = o => hgt - o / arena * hgt;
    g.fillStyle = cssColour('--back');
    g.fillRect(0, 0, w, hgt);
    for (const b of run.temps) {
      const on = app.launch && (app.launch.i == b.first || app.launch.reads.includes(run.buffers.indexOf(b)));
      g.globalAlpha = !app.launch || on ? 0.85 : 0.4;
      g.fillStyle = tone(run.launches[b.first].look);
      const r = [x(b.first), y((b.offset || 0) + b.bytes), Math.max(1, x(b.last + 1) - x(b.first) - 0.5), Math.max(1, b.bytes / arena * hgt - 0.5)];
      g.fillRect(...r);
      if (on) { g.globalAlpha = 1; g.strokeStyle = cssColour('--ink'); g.strokeRect(...r); }
      g.globalAlpha = 1;
      if (r[2] > 60 && r[3] > 13) { g.fillStyle = '#fff'; g.font = '11px system-ui, sans-serif'; g.save(); g.beginPath(); g.rect(...r); g.clip(); g.fillText(b.name + '  ' + fmtBytes(b.bytes), r[0] + 4, r[1] + Math.min(12, r[3] - 3)); g.restore(); }
    }
    g.strokeStyle = cssColour('--miss');
    g.setLineDash([4, 3]);
    g.beginPath(); g.moveTo(x(run.peak + 0.5), 0); g.lineTo(x(run.peak + 0.5), hgt); g.stroke();
    g.setLineDash([]);
    const find = e => {
      const i = Math.floor(e.offsetX / w * n), o = (1 - e.offsetY / hgt) * arena;
      return run.temps.find(b => b.first <= i && i <= b.last && (b.offset || 0) <= o && o < (b.offset || 0) + b.bytes);
    };
    canvas.onmousemove = e => { const b = find(e); tip(e, b && `${b.name} ${b.type}, ${fmtBytes(b.bytes)}\nwritten by #${b.first + 1} ${full(run.launches[b.first])}\nlast read by #${b.last + 1} ${full(run.launches[b.last])}`); };
    canvas.onmouseleave = () => tip();
    canvas.onclick = e => { const b = find(e); if (b) select(run.launches[b.first]); };
  },
};

// ---- Code

const codeView = {
  name: 'Code',
  show(run, state) {
    if (!run.launches.length) return empty(run);
    const l = state.launch || run.launches.reduce((a, x) => x.weight > a.weight ? x : a);
    const choose = h('select', { 'aria-label': 'launch', onchange: e => select(run.launches[+e.target.value]) });
    for (const x of run.launches) choose.append(h('option', { value: x.i, selected: x == l }, `#${x.n} ${full(x)}`));
    const source = l.source ? run.trace.sources[l.source - 1] : '';
    return [h('p', {}, choose), h('div', { class: 'code' },
      h('section', {}, h('h2', {}, source ? 'Kernel source' : 'Instructions', h('small', {}, `#${l.n}, ${l.kind}${l.kernel && l.kernel != 'fusion' ? ', ' + l.kernel : ''}${l.reason ? ', on ' + l.device + ' since ' + l.reason : ''}`)), source ? h('pre', {}, source) : this.program(run, l)),
      h('section', {}, h('h2', {}, 'Your lines', h('small', {}, plural(l.origins.length, 'node'))), this.lines(run, l)))];
  },
  // program lists what a launch computes, a line for each operation.
  program(run, l) {
    const body = run.body(l), node = run.last().get(l.node), pre = h('pre', {});
    const name = id => {
      const n = run.last().get(id), from = run.launches.find(x => x.node == id);
      return n && n.name ? n.name : from ? '#' + from.n + ' ' + full(from) : n && n.op == 'result' ? name(n.args[0]) : '%' + id;
    };
    const attrs = n => { const a = Object.entries(n.attrs || {}).filter(([k]) => k != 'value' && k != 'fn'); return a.length ? '[' + a.map(([k, v]) => k + '=' + v).join(' ') + ']' : ''; };
    const line = (no, text) => pre.append(h('div', {}, h('span', { class: 'no' }, String(no).padStart(4) + '  '), text));
    if (!body) {
      line(0, `${run.opName(node || { op: l.kind })}${node ? attrs(node) : ''} ${node ? (node.args || []).map(name).join(', ') : ''}   : ${l.result}`);
      return pre;
    }
    let input = 0;
    body.nodes.forEach((n, i) => {
      const args = (n.args || []).map(a => body.nodes[a].op == 'const' && body.nodes[a].attrs ? body.nodes[a].attrs.value : 'v' + a).join(', ');
      if (n.op == 'const' && n.attrs && n.attrs.value) return;
      if (n.op == 'input') line(i, `v${i} = input ${name((node.args || [])[input++])}   : ${n.type}`);
      else line(i, `v${i} = ${run.opName(n)}${attrs(n)} ${args}   : ${n.type}`);
    });
    body.outputs.forEach((o, i) => line('', `result${body.outputs.length > 1 ? ' ' + i : ''} v${o}`));
    return pre;
  },
  // lines shows the user's nodes, with the lines that built them where these could be read.
  lines(run, l) {
    const lines = run.trace.lines || {}, files = new Map(), list = h('ul', { class: 'list' });
    for (const o of l.origins.slice(0, 200)) list.append(h('li', { class: 'wrap' }, o.name || '', ' ', h('span', { class: 'mono faint' }, o.pos || '')));
    for (const o of l.origins) {
      const m = /^(.*):(\d+)$/.exec(o.pos || '');
      if (!m || lines[o.pos] === undefined) continue;
      if (!files.has(m[1])) files.set(m[1], new Set());
      files.get(m[1]).add(+m[2]);
    }
    return [[...files].map(([file, at]) => {
      const pre = h('pre', {}), near = new Set();
      for (const n of at) for (let k = n - 2; k <= n + 2; k++) if (lines[file + ':' + k] !== undefined) near.add(k);
      let last = 0;
      for (const n of [...near].sort((a, b) => a - b)) {
        if (last && n > last + 1) pre.append(h('div', { class: 'no' }, '    ⋮'));
        pre.append(h('div', { class: at.has(n) ? 'at' : '' }, h('span', { class: 'no' }, String(n).padStart(5) + '  '), lines[file + ':' + n]));
        last = n;
      }
      return [h('h3', {}, file), pre];
    }), l.origins.length ? h('h3', {}, 'Nodes') : h('p', { class: 'faint' }, 'This launch computes none of your nodes.'), list];
  },
};

// ---- Training, while it goes on

const trainingView = {
  name: 'Training',
  state: null,
  // ask reads the state of the run, again and again.
  async ask() {
    try {
      const answer = await fetch(location.pathname + '?live', { cache: 'no-store' });
      if (!answer.ok) throw new Error(answer.statusText);
      this.state = await answer.json();
      this.lost = '';
    } catch (err) { this.lost = 'The run does not answer; this is its last state.'; }
    if (app.view == this && !document.hidden) redraw();
    setTimeout(() => this.ask(), 2000);
  },
  show() {
    const s = this.state;
    if (!s) return h('section', {}, h('h2', {}, 'Waiting for the run'), this.lost);
    const mean = s.took_ns.length ? sum(s.took_ns, x => x) / s.took_ns.length : 0, finite = s.loss.filter(x => x !== null);
    return [this.lost ? h('p', { class: 'miss' }, this.lost) : null,
      h('section', {}, h('h2', {}, 'Loss', h('small', {}, plural(s.steps, 'step') + (finite.length ? ', ' + finite[finite.length - 1].toPrecision(5) + ' at the end' : '') + (s.every > 1 ? `; each point is the mean of ${s.every} steps` : ''))),
        chart(s.loss, v => v.toPrecision(4), s.every), s.skipped ? h('p', { class: 'miss' }, plural(s.skipped, 'step') + ' skipped, since a gradient or a cost was not finite') : null),
      h('section', {}, h('h2', {}, 'Time of a step', h('small', {}, fmtTime(mean) + ' in the mean')), chart(s.took_ns, fmtTime, s.every)),
      Object.entries(s.experts || {}).map(([name, loads]) => h('section', {}, h('h2', {}, name, h('small', {}, 'tokens of each expert in the last step')),
        loads.map((n, i) => h('div', { style: { display: 'grid', 'grid-template-columns': '80px 1fr 64px', gap: '6px', 'align-items': 'center' } }, h('small', {}, 'expert ' + i),
          h('i', { style: { height: '9px', width: 100 * n / Math.max(1, ...loads) + '%', background: 'var(--link)', 'border-radius': '2px' } }), h('small', {}, n)))))];
  },
};

// chart draws values over steps. Values that are null are left out.
function chart(values, fmt, every) {
  const W = 900, H = 180, left = 70, foot = 20, known = values.filter(v => v !== null);
  if (!known.length) return h('p', { class: 'faint' }, 'nothing yet');
  const low = Math.min(...known), high = Math.max(...known), range = high - low || 1;
  const x = i => left + i / Math.max(1, values.length - 1) * (W - left - 8), y = v => 8 + (high - v) / range * (H - foot - 16);
  const pic = svg('svg', { viewBox: `0 0 ${W} ${H}`, width: '100%', role: 'img', 'aria-label': `from ${fmt(known[0])} to ${fmt(known[known.length - 1])}` });
  const text = (px, py, s, anchor) => { const t = svg('text', { x: px, y: py, 'text-anchor': anchor, 'font-size': 11, fill: cssColour('--faint') }); t.textContent = s; pic.append(t); };
  for (const v of [high, (high + low) / 2, low]) {
    pic.append(svg('line', { x1: left, x2: W - 8, y1: y(v), y2: y(v), stroke: cssColour('--line') }));
    text(left - 6, y(v) + 4, fmt(v), 'end');
  }
  text(left, H - 4, 'step 1', 'start');
  text(W - 8, H - 4, 'step ' + fmtCount(values.length * every), 'end');
  let path = '', pen = 'M';
  values.forEach((v, i) => { if (v === null) { pen = 'M'; return; } path += pen + x(i).toFixed(1) + ' ' + y(v).toFixed(1); pen = 'L'; });
  pic.append(svg('path', { d: path, fill: 'none', stroke: cssColour('--link'), 'stroke-width': 1.6, 'stroke-linejoin': 'round', 'stroke-linecap': 'round' }));
  return pic;
}

// ---- A pipeline whose steps were measured

const WORK = { forward: '#0072b2', backward: '#e69f00', update: '#009e73', sums: '#8a8f98' };

const pipelineView = {
  name: 'Pipeline',
  // of is the pipeline of a run whose steps were measured, or null.
  of(run) {
    const last = run.trace.stages[run.trace.stages.length - 1];
    return last && last.pipeline && last.pipeline.measured ? last.pipeline : null;
  },
  show(run) {
    const p = this.of(run), m = p.measured, n = m.stages.length, equal = (n - 1) / (p.microbatches + n - 1);
    const row = (s, i) => {
      const at = p.stages[i] || {}, waits = s.previous_ns + s.next_ns + s.all_ns;
      return h('tr', {}, h('td', {}, i + 1, ' ', h('small', {}, (at.devices || [])[0] || '')), h('td', { class: 'wrap' }, at.ends || ''),
        [s.step_ns, s.passes_ns, s.update_ns, s.previous_ns, s.next_ns, s.all_ns].map(v => h('td', { class: 'n' }, fmtTime(v))), h('td', { class: 'n' }, fmtShare(waits / (s.step_ns || 1))));
    };
    return [h('section', {}, h('h2', {}, `Participants wait for ${fmtShare(m.waited)} of a step`, h('small', {}, `${fmtShare(equal)} if stages took equally long and exchanges no time; ${plural(n, 'stage')}, ${plural(p.microbatches, 'microbatch', 'microbatches')}`)),
      h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, 'stage'), h('th', {}, 'up to'), ['a step', 'passes', 'optimiser', 'waits for previous', 'for next', 'for all', 'in all'].map(x => h('th', { class: 'n' }, x)))), h('tbody', {}, m.stages.map(row))),
      h('p', { class: 'faint' }, `Means of ${plural(m.steps, 'step')}. A wait is the time of an exchange: until the other stage is there, and of the copies. Stages wait for all before the optimiser's step, and at the end.`)),
    h('section', {}, h('h2', {}, 'The last step'), h('p', {}, Object.entries(WORK).map(([name, colour]) => h('span', { style: { 'margin-right': '12px' } }, h('i', { class: 'chip', style: { background: colour } }), name)), h('span', {}, h('i', { class: 'chip', style: { background: 'var(--alive)' } }), 'wait')), this.steps(m))];
  },
  // steps draws what each stage does and when, a row for each.
  steps(m) {
    const W = 1000, left = 64, high = 26, gap = 10, foot = 20, H = m.stages.length * (high + gap) + foot;
    const end = Math.max(1, ...m.stages.flatMap(s => (s.spans || []).map(x => x.start_ns + x.length_ns))), x = v => left + v / end * (W - left - 4);
    const pic = svg('svg', { viewBox: `0 0 ${W} ${H}`, width: '100%', role: 'img', 'aria-label': `${plural(m.stages.length, 'stage')}, ${fmtTime(end)}` });
    const text = (px, py, s, anchor, fill) => { const t = svg('text', { x: px, y: py, 'text-anchor': anchor, 'font-size': 11, fill }); t.textContent = s; pic.append(t); };
    m.stages.forEach((s, i) => {
      const y = i * (high + gap);
      text(0, y + 17, 'stage ' + (i + 1), 'start', cssColour('--faint'));
      for (const span of s.spans || []) {
        const wide = span.length_ns / end * (W - left - 4), title = svg('title', {});
        title.textContent = `${span.what}${span.microbatch ? ', microbatch ' + span.microbatch : ''}: ${fmtTime(span.length_ns)}, from ${fmtTime(span.start_ns)}`;
        pic.append(svg('rect', { x: x(span.start_ns).toFixed(2), y, width: Math.max(wide, 0.3).toFixed(2), height: high, fill: WORK[span.what] || cssColour('--alive') }, title));
        if (WORK[span.what] && span.microbatch && wide > 16) text(x(span.start_ns) + wide / 2, y + 17, span.microbatch, 'middle', '#fff');
      }
    });
    text(left, H - 5, '0', 'start', cssColour('--faint'));
    text(W - 4, H - 5, fmtTime(end), 'end', cssColour('--faint'));
    return pic;
  },
};

// ---- Compare

const compareView = {
  name: 'Compare',
  show(run, state, other) {
    if (!other) return h('section', {}, h('h2', {}, 'Nothing to compare with'), h('p', {}, 'fusec report model.graph other.graph -o report.html compares two compilations; a file may also be the JSON of fusec dump --all --measured --format json.'));
    const total = [['launches', r => r.inRun.length, fmtCount], [run.unit == other.unit ? run.unit : 'traffic', r => run.unit == other.unit ? r.total : r.bytes, run.unit == other.unit ? run.fmt : fmtBytes],
      ['memory traffic', r => r.bytes, fmtBytes], ['arithmetic', r => r.flops, fmtFLOPs], ['peak of temporary values', r => r.peakBytes, fmtBytes], ['missed fusions', r => r.missCount, fmtCount]];
    const rows = compare(run, other), body = h('tbody');
    const fmt = run.unit == other.unit ? run.fmt : fmtBytes, w = l => run.unit == other.unit ? l.weight : l.bytes;
    const list = (of, show) => of.slice(0, 6).map(l => h('div', {}, chip(l.look), show(l))).concat(of.length > 6 ? h('small', {}, `and ${of.length - 6} more`) : []);
    grow(body, rows, r => h('tr', { class: r.as.length ? 'row' : '', onclick: e => { if (r.as.length && !e.target.closest('a')) select(r.as[0]); } }, h('td', { class: 'nowrap ' + ({ slower: 'miss', lost: 'miss', faster: 'good', fused: 'good' }[r.what] || 'faint') }, r.what),
      h('td', { class: 'wrap' }, list(r.as, l => launchLink(l))), h('td', { class: 'wrap' }, list(r.bs, l => '#' + l.n + ' ' + full(l))),
      h('td', { class: 'n' }, r.as.length ? fmt(sum(r.as, w)) : ''), h('td', { class: 'n' }, r.bs.length ? fmt(sum(r.bs, w)) : ''), h('td', { class: 'n' }, signed(r.delta, fmt)), h('td', { class: 'wrap' }, h('small', {}, r.why))));
    const counts = new Map();
    for (const r of rows) counts.set(r.what, (counts.get(r.what) || 0) + 1);
    return [h('section', {}, h('h2', {}, 'This run against the other', h('small', {}, [run, other].map(r => [r.trace.model, ...(r.trace.flags || [])].join(' ')).join(' against '))),
      h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, ''), h('th', { class: 'n' }, 'this'), h('th', { class: 'n' }, 'other'), h('th', { class: 'n' }, 'this / other'))),
        h('tbody', {}, total.filter((t, i) => i != 1 || t[0] != 'traffic').map(([name, f, show]) => h('tr', {}, h('td', {}, name), h('td', { class: 'n' }, show(f(run))), h('td', { class: 'n' }, show(f(other))), h('td', { class: 'n' }, f(other) ? (f(run) / f(other)).toFixed(2) : '')))))),
      h('section', {}, h('h2', {}, 'Launch by launch', h('small', {}, 'matched by name: ' + [...counts].map(([k, n]) => n + ' ' + k).join(', '))),
        h('table', {}, h('thead', {}, h('tr', {}, ['', 'this', 'other'].map(x => h('th', {}, x)), ['this', 'other', 'difference'].map(x => h('th', { class: 'n' }, x)), h('th', {}, ''))), body))];
  },
};

const signed = (v, fmt) => v === undefined ? '' : (v > 0 ? '+' : v < 0 ? '−' : '') + fmt(Math.abs(v));

// compare matches the launches of two runs by the names of their results, their phase and their kind. What is left over
// is matched by the user's nodes that it computes: several launches of the other run that are one in this one were fused,
// and one of the other run that is several here is a fusion lost.
function compare(run, other) {
  const w = l => run.unit == other.unit ? l.weight : l.bytes, all = list => sum(list, w);
  const index = r => {
    const seen = new Map();
    return new Map(r.launches.map(l => {
      const k = [l.phase, l.layer, l.label, l.kind].join('\n'), n = seen.get(k) || 0;
      seen.set(k, n + 1);
      return [k + '\n' + n, l];
    }));
  };
  const noise = run.measured ? 0.1 : 0; // what measured times may differ by chance
  const as = index(run), bs = index(other), rows = [], pair = (a, b) => {
    const delta = w(a) - w(b), same = Math.abs(delta) <= noise * w(b);
    rows.push({ as: [a], bs: [b], delta, what: same ? 'same' : run.measured ? (delta < 0 ? 'faster' : 'slower') : (delta < 0 ? 'less' : 'more'), why: a.kind != b.kind ? `${a.kind}, was ${b.kind}` : '' });
  };
  const restA = [], restB = [];
  for (const [k, a] of as) if (bs.has(k)) pair(a, bs.get(k)); else restA.push(a);
  for (const [k, b] of bs) if (!as.has(k)) restB.push(b);
  // The launches of a list by the nodes that they compute. A name that several nodes have needs its line.
  const times = new Map();
  for (const r of [run, other]) {
    const here = new Map();
    for (const o of r.trace.origins) here.set(o.name, (here.get(o.name) || 0) + 1);
    for (const [name, n] of here) times.set(name, Math.max(n, times.get(name) || 0));
  }
  const keys = l => l.origins.slice(0, 256).map(o => l.phase + '\n' + o.name + '\n' + (o.name && times.get(o.name) == 1 ? '' : o.pos));
  const byNode = list => {
    const m = new Map();
    for (const l of list) for (const k of keys(l)) {
      if (!m.has(k)) m.set(k, []);
      m.get(k).push(l);
    }
    return l => [...new Set(keys(l).flatMap(k => m.get(k) || []))].filter(x => !used.has(x));
  };
  const used = new Set(), inA = byNode(restA), inB = byNode(restB), reason = list => { const l = list.find(x => x.misses.length); return l ? l.misses[0].reason : ''; };
  for (const a of restA) {
    if (used.has(a)) continue;
    const b = inB(a);
    if (b.length == 0) continue;
    const back = b.length == 1 ? inA(b[0]) : [a];
    for (const l of [...back, ...b]) used.add(l);
    if (b.length == 1 && back.length == 1) pair(a, b[0]);
    else rows.push({ as: back, bs: b, delta: all(back) - all(b), what: b.length > 1 ? 'fused' : 'lost', why: b.length > 1 ? `${b.length} launches are one` : `one launch is ${back.length}` + (reason(back) ? ': ' + reason(back) : '') });
  }
  for (const a of restA) if (!used.has(a)) rows.push({ as: [a], bs: [], delta: w(a), what: 'new', why: '' });
  for (const b of restB) if (!used.has(b)) rows.push({ as: [], bs: [b], delta: -w(b), what: 'gone', why: '' });
  return rows.sort((x, y) => Math.abs(y.delta) - Math.abs(x.delta));
}

// empty stands for a view of a trace without launches.
function empty(run) {
  const p = run.trace.program;
  return h('section', {}, h('h2', {}, 'Nothing runs'), h('p', {}, p ? p.refusal || 'The program has no launches.' : 'The trace has no program: compiling ended before, or one stage was dumped. The tab Stages has what there is.'));
}
