// The coordinator's dashboard. It asks the API every two seconds and draws what changed. Whatever comes from a job
// becomes text, never markup.
'use strict';

const API = {
  overview: '/v1/overview',
  jobs: '/v1/jobs',
  job: '/v1/jobs/{id}',
  events: '/v1/jobs/{id}/events',
  attempts: '/v1/jobs/{id}/attempts',
  logs: '/v1/jobs/{id}/logs',
  cancel: '/v1/jobs/{id}/cancel',
  batches: '/v1/batches',
};
const PERIOD_MS = 2000;
const HISTORY_S = 300;
const LOG_BYTES = 16384;
const KEY = 'llm-dist-key';
const ENDED = ['SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED'];
const OPEN = ['QUEUED', 'STARTING', 'RUNNING', 'RECOVERING', 'SUSPENDED', 'CANCELLING', 'FINALIZING'];
const SHORT = {batch_inference: 'batch'};

const byId = (id) => document.getElementById(id);
const number = (value, digits = 0) => value.toLocaleString(undefined, {maximumFractionDigits: digits});
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const date = (seconds) => (seconds === null ? '–' : new Date(seconds * 1000).toLocaleString());

function duration(seconds) {
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min']];
  for (const [size, name] of units) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${name}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

// ---- elements

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const element = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const shape = (name, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

// Draws again only what has changed, so that a selection or the focus outlives the next answer.
const drawn = new Map();
function draw(id, data, build) {
  const text = JSON.stringify(data);
  if (drawn.get(id) === text) return;
  drawn.set(id, text);
  const node = byId(id);
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  node.replaceChildren(...build(data));
  if (focused) node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

function table(columns, rows, empty) {
  if (rows.length === 0) return [element('p', {class: 'empty'}, empty)];
  const head = columns.map(([title, kind]) => element('th', {scope: 'col', class: kind ?? null}, title));
  const cells = (row) => row.map((cell, i) => element('td', {class: columns[i][1] ?? null}, cell));
  return [element('table', {}, element('thead', {}, element('tr', {}, ...head)),
                  element('tbody', {}, ...rows.map((row) => element('tr', {}, ...cells(row)))))];
}

const stateOf = (state) => element('span', {class: `state ${state}`}, state);
const jobLink = (id, text = id) => element(
    'button', {type: 'button', class: 'link', 'data-focus': id, title: text, onclick: () => openDetails(id)}, text);
const bar = (value, max, label, kind = null) =>
  element('progress', {value: Math.min(value, max), max: Math.max(max, 1e-9), 'aria-label': label, class: kind});

// ---- the API

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, {id = '', query = {}, method = 'GET', text = false} = {}) {
  const values = new URLSearchParams(query).toString();
  const url = path.replace('{id}', encodeURIComponent(id)) + (values === '' ? '' : `?${values}`);
  const key = sessionStorage.getItem(KEY);
  const headers = key === null ? {} : {Authorization: `Bearer ${key}`};
  const reply = await fetch(url, {method, headers, cache: 'no-store', signal: AbortSignal.timeout(15000)});
  if (reply.ok) return text ? reply.text() : reply.json();
  const body = await reply.json().catch(() => ({}));
  throw new Refusal(reply.status, body.error?.message ?? `HTTP ${reply.status}`);
}

// Events of a job by its version: they are asked for again only when there is one more.
const known = new Map();
async function eventsOf(job) {
  const before = known.get(job.id);
  if (before?.version === job.version) return before.events;
  const list = await ask(API.events, {id: job.id, query: {stream: 'false'}});
  known.set(job.id, {version: job.version, events: list.data});
  return list.data;
}

// ---- the parts of the page

function drawQueue(counts) {
  draw('queue', counts, () => Object.entries(counts).map(([state, count]) => element(
      'li', {class: count > 0 ? state : `${state} none`},
      element('b', {}, number(count)), element('span', {}, state))));
}

function drawReplicas(replicas, now) {
  const columns = [['Job'], ['State'], ['KV cache'], ['Running', 'number'], ['Waiting', 'number'],
                   ['Tokens/s', 'number'], ['Layout'], ['Model', 'text'], ['Up', 'number']];
  const row = (replica) => {
    const load = replica.load;
    const rate = load?.generation_tokens_per_second ?? null;
    return [jobLink(replica.job), stateOf(replica.state),
            load ? element('span', {}, bar(load.kv_cache_usage, 1, 'KV cache in use', 'meter'),
                           `${number(100 * load.kv_cache_usage, 1)} %`) : '–',
            load ? number(load.requests_running) : '–', load ? number(load.requests_waiting) : '–',
            rate === null ? '–' : number(rate, rate < 100 ? 1 : 0), `TP ${replica.tp} × PP ${replica.pp}`,
            replica.model, duration(now - replica.started_at)];
  };
  draw('replicas', [replicas, Math.floor(now / 10)], () => table(columns, replicas.map(row), 'No replica runs.'));
}

// The smallest of 1, 2, 3, 4, 6, 8, 10, 20… that is not below.
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}

function drawThroughput(points, now) {
  const [width, height, left, right, top, bottom] = [640, 190, 44, 630, 10, 164];
  const series = [['generated', 'generation_tokens_per_second'], ['prompt', 'prompt_tokens_per_second']];
  draw('throughput', [points, now], () => {
    const shown = points.filter((point) => now - point.at <= HISTORY_S);
    const most = niceCeiling(Math.max(1, ...shown.flatMap((point) => series.map(([, field]) => point[field]))));
    const x = (point) => (right - (now - point.at) / HISTORY_S * (right - left)).toFixed(1);
    const y = (value) => (bottom - value / most * (bottom - top)).toFixed(1);
    const last = shown.at(-1);
    const chart = shape('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Tokens per second'});
    for (const share of [0, 0.5, 1]) {
      chart.append(shape('line', {class: 'grid', x1: left, x2: right, y1: y(share * most), y2: y(share * most)}),
                   shape('text', {x: left - 6, y: +y(share * most) + 4, 'text-anchor': 'end'},
                         number(share * most, 1)));
    }
    for (const minutes of [5, 4, 3, 2, 1, 0]) {
      const label = minutes === 0 ? 'now' : `−${minutes} min`;
      chart.append(shape('text', {x: x({at: now - 60 * minutes}), y: bottom + 18,
                                  'text-anchor': minutes === 0 ? 'end' : 'middle'}, label));
    }
    if (shown.length > 1) {
      const line = (field) => shown.map((point) => `${x(point)},${y(point[field])}`).join(' ');
      const generated = line('generation_tokens_per_second');
      chart.append(
          shape('polygon', {class: 'area', points: `${x(shown[0])},${y(0)} ${generated} ${x(last)},${y(0)}`}),
          shape('polyline', {class: 'curve prompt', points: line('prompt_tokens_per_second')}),
          shape('polyline', {class: 'curve', points: generated}));
    }
    const keys = series.map(([name, field]) => element(
        'li', {class: `state ${name}`}, `${name} ${last ? number(last[field], 1) : '–'}`));
    return [element('ul', {class: 'keys'}, ...keys), chart];
  });
}

function progressOf(job, batch) {
  if (!batch) return '–';
  const {total, completed, failed} = batch.request_counts;
  const done = completed + failed;
  const note = failed > 0 ? `, ${number(failed)} failed` : '';
  return element('span', {}, bar(done, total, `${job.id}: items done`),
                 `${number(done)} of ${number(total)}${note}`);
}

function drawJobs(jobs, batches, now) {
  const columns = [['Job'], ['State'], ['Progress'], ['Type'], ['Model', 'text'], ['Project', 'text'], ['Note', 'text'],
                   ['Age', 'number']];
  const row = (job) => [
    jobLink(job.id), stateOf(job.state), progressOf(job, batches.get(job.id)), SHORT[job.type] ?? job.type,
    job.spec.model, job.project,
    job.intent ? `to ${job.intent}` : job.message ?? job.reason ?? '', duration(now - job.created_at)];
  draw('jobs', [jobs, [...batches.values()], Math.floor(now / 10)],
       () => table(columns, jobs.map(row), 'No job is open.'));
}

function drawTimeline(jobs, histories, now) {
  const begin = Math.min(now - 60, ...jobs.map((job) => Math.max(job.created_at, now - 86400)));
  const percent = (at) => 100 * Math.max(0, at - begin) / (now - begin);
  const row = (job, events) => {
    const lane = shape('svg', {role: 'img', 'aria-label': `${job.id} is ${job.state}`});
    events.forEach((event, i) => {
      const [from, to] = [percent(event.at), percent(events[i + 1]?.at ?? now)];
      const title = shape('title', {}, `${event.to} ${clock(event.at)}${event.reason ? `, ${event.reason}` : ''}`);
      const ended = ENDED.includes(event.to);
      lane.append(shape('rect', {class: `span ${event.to}`, x: `${Math.min(from, 99.5)}%`, y: ended ? 1 : 5, rx: 1,
                                 width: ended ? 5 : `${Math.max(to - from, 0.3)}%`, height: ended ? 18 : 10}, title));
    });
    const name = `${job.id} ${SHORT[job.type] ?? job.type} ${job.spec.model}`;
    return element('div', {class: 'span-row'}, jobLink(job.id, name), lane);
  };
  const states = [...new Set(histories.flat().map((event) => event.to))];
  draw('legend', states, () => states.map((state) => element('li', {}, stateOf(state))));
  draw('timeline', [jobs, histories, now], () => jobs.length === 0 ?
      [element('p', {class: 'empty'}, 'No job was submitted yet.')] :
      [...jobs.map((job, i) => row(job, histories[i])),
       element('div', {class: 'axis'}, element('span', {}, clock(begin)),
               element('span', {}, `${duration(now - begin)} in all`), element('span', {}, clock(now)))]);
}

// ---- the details of one job

const opened = {id: null, asks: false};

function openDetails(id) {
  Object.assign(opened, {id, asks: false});
  byId('details-title').textContent = id;
  for (const part of ['facts', 'actions', 'events', 'attempts']) {
    drawn.delete(part);
    byId(part).replaceChildren();
  }
  byId('log').textContent = '';
  history.replaceState(null, '', `#${id}`);
  if (!byId('details').open) byId('details').showModal();
  refreshDetails().catch(report);
}

function closeDetails() {
  opened.id = null;
  history.replaceState(null, '', location.pathname);
}

async function cancel(id) {
  opened.asks = false;
  await ask(API.cancel, {id, method: 'POST'});
  await refreshDetails();
}

function drawActions(job) {
  const set = (asks) => () => {
    opened.asks = asks;
    drawActions(job);
  };
  const button = (text, onclick, kind = null) =>
    element('button', {type: 'button', class: kind, 'data-focus': 'action', onclick}, text);
  draw('actions', [job.id, job.state, opened.asks], () => {
    if (ENDED.includes(job.state) || job.state === 'CANCELLING') return [];
    if (!opened.asks) return [button('Cancel this job…', set(true), 'danger')];
    return [element('span', {}, `End ${job.id}? A cancelled job does not go on.`),
            button('Yes, cancel it', () => cancel(job.id).catch(reportDetails), 'danger'), button('No', set(false))];
  });
}

function drawFacts(job) {
  const facts = {State: stateOf(job.state), Type: job.type, Project: job.project, Priority: `${job.priority}`,
                 Created: date(job.created_at), Changed: date(job.updated_at), Expires: date(job.expires_at)};
  if (job.reason) facts.Reason = job.reason;
  if (job.message) facts.Message = job.message;
  if (job.retry_of) facts['Retry of'] = job.retry_of;
  for (const [name, value] of Object.entries(job.spec)) facts[name] = `${value}`;
  const pair = ([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value));
  draw('facts', job, () => [element('dl', {}, ...Object.entries(facts).map(pair))]);
}

function drawLog(text) {
  const node = byId('log');
  const shown = text === '' ? 'Nothing was written yet.' : text;
  if (node.textContent === shown) return;
  const follows = node.scrollTop + node.clientHeight >= node.scrollHeight - 4;
  node.textContent = shown;
  if (follows) node.scrollTop = node.scrollHeight;
}

async function refreshDetails() {
  const id = opened.id;
  if (id === null) return;
  const job = await ask(API.job, {id});
  const [events, attempts, log] = await Promise.all([
    eventsOf(job), ask(API.attempts, {id}), ask(API.logs, {id, query: {tail: LOG_BYTES}, text: true})]);
  if (opened.id !== id) return;
  drawFacts(job);
  drawActions(job);
  draw('events', events, () => table(
      [['#', 'number'], ['At'], ['State'], ['Attempt', 'number'], ['Reason'], ['Message', 'text']],
      events.map((event) => [`${event.number}`, date(event.at), stateOf(event.to),
                             event.attempt ? `${event.attempt}` : '', event.reason ?? '', event.message ?? '']),
      'None.'));
  draw('attempts', attempts.data, () => table(
      [['#', 'number'], ['State'], ['Started'], ['Ended'], ['Ranks', 'number'], ['Exit code', 'number'], ['Reason'],
       ['Endpoint', 'text']],
      attempts.data.map((attempt) => [
        `${attempt.number}`, attempt.state, date(attempt.started_at), date(attempt.ended_at), `${attempt.slots}`,
        attempt.exit_code === null ? '–' : `${attempt.exit_code}`, attempt.reason ?? '', attempt.endpoint ?? '–']),
      'It was not launched yet.'));
  drawLog(log);
}

// ---- the loop

function say(kind, text) {
  byId('status').className = kind;
  byId('status').textContent = text;
}

function report(error) {
  if (error.status !== 401) return say('bad', error.status ? error.message : 'The coordinator does not answer.');
  byId('key-error').textContent = sessionStorage.getItem(KEY) === null ? '' : 'That key is not known here.';
  sessionStorage.removeItem(KEY);
  byId('key-form').hidden = false;
  byId('forget-key').hidden = true;
  document.querySelector('main').hidden = true;
  if (byId('details').open) byId('details').close();
  say('bad', 'A key is needed.');
  byId('key').focus();
}

function reportDetails(error) {
  drawn.delete('actions');
  byId('actions').replaceChildren(element('span', {class: 'bad', role: 'alert'}, error.message));
}

async function refresh() {
  const [overview, open, last] = await Promise.all([
    ask(API.overview), ask(API.jobs, {query: {state: OPEN.join(','), limit: 50}}),
    ask(API.jobs, {query: {limit: 20}})]);
  const runsBatches = open.data.some((job) => job.type === 'batch_inference');
  const batches = runsBatches ? (await ask(API.batches, {query: {limit: 50}})).data : [];
  const histories = await Promise.all(last.data.map(eventsOf));
  byId('key-form').hidden = true;
  byId('forget-key').hidden = sessionStorage.getItem(KEY) === null;
  document.querySelector('main').hidden = false;
  byId('version').textContent = overview.version;
  byId('slots').textContent = `${overview.slots.used} of ${overview.slots.total} slots in use`;
  drawQueue(overview.jobs);
  drawThroughput(overview.throughput, overview.at);
  drawReplicas(overview.replicas, overview.at);
  drawJobs(open.data, new Map(batches.map((batch) => [batch.job, batch])), overview.at);
  drawTimeline(last.data, histories, overview.at);
  await refreshDetails();
  say('good', `As of ${clock(overview.at)}`);
}

async function run() {
  if (!document.hidden && byId('key-form').hidden) await refresh().catch(report);
  setTimeout(run, PERIOD_MS);
}

byId('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId('key').value);
  byId('key').value = '';
  refresh().catch(report);
});
byId('forget-key').addEventListener('click', () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});
byId('close').addEventListener('click', () => byId('details').close());
byId('details').addEventListener('close', closeDetails);
if (/^#job-\d+$/.test(location.hash)) openDetails(location.hash.slice(1));
run();
