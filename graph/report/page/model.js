'use strict';
// The data of the page: one or two traces in the JSON form that docs/trace-json.md describes, and the colours of kinds.
// Run adds to a trace what the views need.

// unpack reads the compressed data out of the page.
async function unpack() {
  const text = document.getElementById('data').textContent.trim();
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

// Numbers with their units. Sizes are in binary units, as everywhere in fusec.
function scaled(v, step, units) {
  let i = 0;
  while (i < units.length - 1 && Math.abs(v) >= 0.9995 * step) { v /= step; i++; }
  const digits = i == 0 || Math.abs(v) >= 99.95 ? 0 : Math.abs(v) >= 9.995 ? 1 : 2;
  return v.toFixed(digits) + ' ' + units[i];
}
const fmtTime = ns => scaled(ns, 1000, ['ns', 'µs', 'ms', 's']);
const fmtBytes = n => scaled(n, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
const fmtFLOPs = n => scaled(n, 1000, ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP', 'PFLOP']);
const fmtRate = (n, ns, unit) => scaled(n / ns * 1e9, 1000, [unit, 'k' + unit, 'M' + unit, 'G' + unit, 'T' + unit]);
const fmtUnit = unit => n => n < 1e4 ? fmtCount(n) + ' ' + unit : scaled(n, 1000, ['', 'k', 'M', 'G'].map(p => p + unit));
// A target's measure: { name, unit, value }.
const fmtMeasure = m => (Number.isInteger(m.value) ? fmtCount(m.value) : m.value.toPrecision(3)) + (m.unit && m.unit != m.name ? ' ' + m.unit : '');
const fmtCount = n => n.toLocaleString('en').replace(/,/g, '\u202f');
const fmtShare = v => (100 * v).toFixed(v < 0.1 ? 2 : 1) + ' %';
const plural = (n, one, many) => fmtCount(n) + ' ' + (n == 1 ? one : many || one + 's');

// PHASES are in the order of a step. A trace without phases has forward only. Launches that run when parameters are set, and
// not in each run, are a phase of their own here.
const PHASES = ['prepared', 'forward', 'backward', 'optimiser'];

// given are names that a user gives to a node. Gorgonia calls the others by their operation: "A × B", "Reshape(8, 28)".
const given = /^[\p{L}_][\p{L}\p{N}_./:-]*$/u;

class Run {
  constructor(trace, kinds) {
    this.trace = trace;
    this.kinds = kinds;
    this.lookOf = new Map();
    for (const k of kinds) for (const name of k.of) this.lookOf.set(name, k);
    const p = trace.program;
    this.buffers = p ? p.buffers : [];
    this.launches = p ? p.launches.map((l, i) => this.launch(l, i)) : [];
    this.measured = this.launches.some(l => l.measured_ns > 0);
    const estimate = !this.measured && this.launches.flatMap(l => l.estimates || [])[0];
    const estimated = l => (l.estimates || []).find(m => m.name == estimate.name)?.value || 0;
    // What widths and shares are of: time, or the best there is in its place.
    this.unit = this.measured ? 'time' : estimate ? estimate.name : 'traffic';
    for (const l of this.launches) l.weight = this.measured ? l.measured_ns || 0 : estimate ? estimated(l) : l.prepared ? 0 : l.bytes;
    this.fmt = this.measured ? fmtTime : estimate ? fmtUnit(estimate.unit || '') : fmtBytes;
    this.total = sum(this.launches, l => l.weight);
    this.inRun = this.launches.filter(l => !l.prepared);
    this.flops = sum(this.inRun, l => l.flops);
    this.bytes = sum(this.inRun, l => l.bytes);
    this.connect();
    this.memory();
    this.misses();
    this.layers();
  }

  launch(l, i) {
    const writes = l.writes.map(b => this.buffers[b]);
    const layer = l.layer || '';
    const origins = this.origins(l.origin);
    let label = l.name || (writes[0] && !/^b\d+$/.test(writes[0].name) ? writes[0].name : '');
    if (label.startsWith('gradient of ')) label = '∂ ' + label.slice(12).replace(layer + '/', '').replace(layer + '.', '');
    else if (label && writes.length > 3) label += ' and ' + (writes.length - 1) + ' more';
    if (layer && label.startsWith(layer)) label = label.slice(layer.length).replace(/^[/._]/, '') || label;
    if (!label) { // by its weights, or by the user's node
      const weight = l.reads.map(b => this.buffers[b]).find(b => b.role == 'param'), named = origins.find(o => o.name && (!layer || given.test(o.name)));
      const of = weight ? weight.name.replace(/[/._][^/._]*$/, '') : named ? named.name.replace(/(.)[{(<].*$/, '$1') : '';
      label = l.kind + (of ? ' ' + (layer && of.startsWith(layer) ? of.slice(layer.length).replace(/^[/._]/, '') || of : of) : '');
    }
    return { ...l, i, n: i + 1, layer, label, origins, phase: l.prepared ? 'prepared' : l.phase || 'forward', look: this.look(l.kind),
      size: sum(writes, b => b.bytes), result: writes.map(b => b.type).join(', '),
      short: writes.length ? writes[0].type + (writes.length > 1 ? ' +' + (writes.length - 1) : '') : '', misses: [], from: [], to: [] };
  }

  look(kind) { return this.lookOf.get(kind) || this.lookOf.get('') || this.kinds[0]; }

  // origins are the user's nodes of a list, which is given plus 1.
  origins(list) { return list ? this.trace.origin_lists[list - 1].map(o => this.trace.origins[o]) : []; }

  // connect finds which launches read what which have written. What is written in place is written more than once.
  connect() {
    const writer = new Map();
    for (const l of this.launches) {
      for (const b of new Set(l.reads)) {
        const w = writer.get(b);
        if (w) { l.from.push(w); w.to.push(l); }
      }
      for (const b of l.writes) writer.set(b, l);
    }
  }

  // memory is how many bytes of temporary values are alive in each launch, and at which launch most are.
  memory() {
    const change = new Float64Array(this.launches.length + 1);
    this.temps = this.buffers.filter(b => b.role == 'temp' && b.first >= 0);
    for (const b of this.temps) { change[b.first] += b.bytes; change[b.last + 1] -= b.bytes; }
    this.alive = [];
    this.peak = 0;
    let now = 0;
    this.launches.forEach((l, i) => {
      this.alive.push(now += change[i]);
      if (now > this.alive[this.peak]) this.peak = i;
    });
    this.peakBytes = this.alive[this.peak] || 0;
  }

  // misses are grouped by cause. The trace says what each group costs, and which misses count.
  misses() {
    const key = (stage, m) => [stage, m.pattern, m.cause].join('\n');
    const name = new Map(this.trace.stages.map(s => [s.index, s.name]));
    const groups = new Map((this.trace.missed || []).map(g => [key(name.get(g.stage), g), { ...g, stage: name.get(g.stage), list: [] }]));
    for (const s of this.trace.stages) for (const m of s.misses || []) {
      const g = groups.get(key(s.name, m)), of = (m.launches || []).map(i => this.launches[i]).filter(Boolean);
      if (g) g.list.push({ ...m, of, group: g, time: this.timeOf(of, m.saves.bytes) });
    }
    for (const g of groups.values()) g.time = this.timeOf([...new Set(g.list.filter(m => m.counts).flatMap(m => m.of))], g.saves.bytes);
    this.free = [...groups.values()].filter(g => !g.counts);
    this.missed = [...groups.values()].filter(g => g.counts).sort((a, b) => b.time - a.time || b.saves.bytes - a.saves.bytes || b.list.length - a.list.length);
    for (const g of this.missed) for (const m of g.list) if (m.counts && m.of.length) m.of[0].misses.push(m);
    this.missCount = sum(this.missed, g => sum(g.list, m => m.counts ? 1 : 0));
  }

  // timeOf is the part of the launches' time that is as large as the saved part of their traffic.
  timeOf(launches, saved) {
    const bytes = sum(launches, l => l.bytes);
    return bytes ? sum(launches, l => l.measured_ns || 0) * Math.min(1, saved / bytes) : 0;
  }

  // layers are the rows of the first page: layers that repeat are one row.
  layers() {
    const all = new Map();
    for (const l of this.launches) {
      if (!all.has(l.layer)) all.set(l.layer, { name: l.layer, launches: [] });
      all.get(l.layer).launches.push(l);
    }
    this.layerOf = all;
    const repeated = new Map();
    for (const r of this.trace.program && this.trace.program.repeats || []) {
      const members = r.layers.map(n => all.get(n)).filter(Boolean);
      const row = { name: members[0].name + ' … ' + members[members.length - 1].name, alike: r.alike, members, launches: [].concat(...members.map(m => m.launches)) };
      for (const m of members) repeated.set(m.name, row);
    }
    this.rows = [];
    for (const [name, layer] of all) {
      const row = repeated.get(name) || layer;
      if (!this.rows.includes(row)) this.rows.push(row);
    }
    this.phases = PHASES.filter(p => this.launches.some(l => l.phase == p));
  }

  phaseWeight(phase) { return sum(this.launches, l => l.phase == phase ? l.weight : 0); }

  // begins is the launch from which on most of the run is of a phase or a later one.
  begins(phase) {
    const of = l => PHASES.indexOf(l.phase) < PHASES.indexOf(phase) ? -1 : 1;
    let best = 0, at = 0, right = 0;
    this.launches.forEach((l, i) => { right -= of(l) * l.weight; if (right > best) { best = right; at = i + 1; } });
    return at;
  }

  // ceiling is the least time that the machine could need for some launches, in ns; 0 if its ceilings are unknown.
  ceiling(list) {
    const m = this.trace.machine;
    if (!m || !m.flops_per_s || !m.bytes_per_s) return 0;
    return sum(list, l => Math.max(l.flops / m.flops_per_s, l.bytes / m.bytes_per_s) * 1e9);
  }

  // changes says of each stage how many nodes of each operation it added, removed and changed.
  changes() {
    if (this.changed) return this.changed;
    const ops = new Map();
    return this.changed = this.trace.stages.map(s => {
      const c = { added: new Map(), removed: new Map(), changed: 0, same: !(s.changed || []).length && !(s.removed || []).length && s.index > 0 };
      const count = (m, op) => m.set(op, (m.get(op) || 0) + 1);
      for (const id of s.removed || []) { count(c.removed, ops.get(id)); ops.delete(id); }
      for (const n of s.changed || []) {
        const op = this.opName(n), before = ops.get(n.id);
        if (before === undefined) count(c.added, op);
        else if (before != op) { count(c.added, op); count(c.removed, before); } else c.changed++;
        ops.set(n.id, op);
      }
      return c;
    });
  }

  // opName is an operation with its function: "unary tanh", "fusion linear".
  opName(n) {
    const a = n.attrs || {};
    return n.op == 'fusion' ? a.kind + ' fusion' : a.fn && n.op != 'reduce' ? a.fn : a.fn ? n.op + ' ' + a.fn : n.op;
  }
  lookOfNode(n) { return this.look(n.op == 'fusion' ? n.attrs.kind : n.op); }

  // follow lists, stage by stage, the nodes that compute any of the given user's nodes.
  follow(origins) {
    const ids = new Set(origins.map(o => this.trace.origins.indexOf(o)));
    const lists = new Set();
    this.trace.origin_lists.forEach((l, i) => { if (l.some(o => ids.has(o))) lists.add(i + 1); });
    const now = new Map();
    return this.trace.stages.map(s => {
      for (const id of s.removed || []) now.delete(id);
      for (const n of s.changed || []) {
        if (lists.has(n.origin) && n.op != 'const' && n.op != 'result') now.set(n.id, n); else now.delete(n.id);
      }
      return { stage: s, nodes: [...now.values()] };
    });
  }

  // last are the nodes of the last stage, by id.
  last() {
    if (!this.lastNodes) {
      this.lastNodes = new Map();
      for (const s of this.trace.stages) {
        for (const id of s.removed || []) this.lastNodes.delete(id);
        for (const n of s.changed || []) this.lastNodes.set(n.id, n);
      }
    }
    return this.lastNodes;
  }

  // body is the body of a launch's fusion, or undefined.
  body(l) {
    const n = this.last().get(l.node);
    return n && n.body ? this.trace.bodies[n.body - 1] : undefined;
  }

  // formula names the operations of a launch in order.
  formula(l) {
    const body = this.body(l);
    if (!body) return l.kind;
    const words = [];
    for (const n of body.nodes) {
      const look = this.lookOfNode(n).name;
      if (n.op == 'input' || n.op == 'const' || n.op == 'result' || look.startsWith('view') || n.op == 'cast') continue;
      const w = this.opName(n), top = words[words.length - 1];
      if (top && top.w == w) top.n++; else words.push({ w, n: 1 });
    }
    return words.map(x => x.w + (x.n > 1 ? ' ×' + x.n : '')).join(' · ');
  }
}

function sum(list, f) { let s = 0; for (const x of list) s += f(x); return s; }
