// Keeps the page current: asks for it each second, and changes what differs.  The server writes all of the HTML.
const SECOND = 1000;
const FULL_EVERY = 5; // requests; curves have a point each five seconds, and stay as they are in between
const HIDDEN = 15 * SECOND; // between requests while nobody sees the page: its title is still seen
const TIMEOUT = 3 * SECOND;
const OLD = 15; // seconds

const found = (id, root = document) => root.getElementById(id);
const seen = { at: found("age").dataset.at, when: performance.now() - 1000 * Number(found("age").dataset.age) };
let etag = "";
let requests = 1;
let lastAnswer = new Date();
let lost = false;
let timer;
let busy = false;

const time = (date) => date.toISOString().slice(0, 19).replace("T", " ") + " UTC";

function age(seconds) {
  const words = found("age").dataset.units.split("|");
  const [word, size] = seconds >= 7200 ? [words[2], 3600] : seconds >= 120 ? [words[1], 60] : [words[0], 1];
  return word.replace("{count}", Math.floor(seconds / size));
}

function showAge() {
  const element = found("age");
  if (!seen.at) return;
  const seconds = Math.max(0, (performance.now() - seen.when) / 1000);
  element.textContent = element.dataset.text.replace("{age}", age(seconds));
  const old = seconds > OLD || lost;
  found("main").classList.toggle("old", old);
  document.documentElement.classList.toggle("gone", old); // no verdict is known: the style sheet shows another
}

function showLost(problem) {
  const element = found("lost");
  lost = true;
  document.title = element.dataset.title;
  const text = element.dataset.text.replace("{since}", time(lastAnswer)).replace("{problem}", problem);
  if (element.textContent !== text) element.textContent = text;
  element.hidden = false;
}

function showFound() {
  lost = false;
  lastAnswer = new Date();
  found("lost").hidden = true;
}

// Changes `to` into `from`.  Elements keep their identity, and so focus, selection and scroll position, by their
// data-key, else by their place.  What only the script writes (data-own) keeps its content; curves that did not come
// (data-keep, empty) stay.
function morph(to, from) {
  if (to.nodeType !== Node.ELEMENT_NODE) {
    if (to.nodeValue !== from.nodeValue) to.nodeValue = from.nodeValue;
    return;
  }
  if ("keep" in from.dataset && !from.hasChildNodes()) return;
  const own = "own" in from.dataset;
  for (const { name, value } of [...from.attributes]) {
    if (own && (name === "hidden" || name === "class")) continue;
    if (to.getAttribute(name) !== value) to.setAttribute(name, value);
  }
  if (own) return;
  for (const { name } of [...to.attributes]) if (!from.hasAttribute(name)) to.removeAttribute(name);
  morphChildren(to, from);
}

function morphChildren(to, from) {
  const keyed = new Map();
  for (const child of to.children) if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  let place = to.firstChild;
  for (const wanted of [...from.childNodes]) {
    const key = wanted.dataset?.key;
    let match = key === undefined ? place : keyed.get(key);
    keyed.delete(key); // a second element of the same key is one of its own
    if (key === undefined && match && (match.nodeName !== wanted.nodeName || match.dataset?.key !== undefined)) match = null;
    if (!match) {
      to.insertBefore(document.adoptNode(wanted), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else to.insertBefore(match, place);
    morph(match, wanted);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

async function update() {
  const url = new URL(location.href);
  if (requests++ % FULL_EVERY) url.searchParams.set("curves", "0");
  const headers = { Accept: "text/html" };
  if (etag) headers["If-None-Match"] = etag;
  const answer = await fetch(url, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!found("age", next)) throw new Error("HTTP " + answer.status);
  if (next.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  etag = answer.headers.get("ETag") ?? "";
  const { at, age: old } = found("age", next).dataset;
  if (at !== seen.at) Object.assign(seen, { at, when: performance.now() - 1000 * Number(old) });
  document.title = next.title;
  morph(document.body, next.body);
}

async function loop() {
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  try {
    await update();
    showFound();
  } catch (error) {
    etag = "";
    const { refused, timeout } = found("lost").dataset;
    const silent = error.name === "TimeoutError" || error.name === "AbortError"; // it listens: stopped, or overloaded
    const problem = silent ? timeout.replace("{count}", TIMEOUT / SECOND) : refused;
    showLost(/^HTTP/.test(error.message) ? error.message : problem);
  }
  showAge();
  busy = false;
  timer = setTimeout(loop, document.visibilityState === "visible" ? SECOND : HIDDEN);
}

showAge();
setInterval(showAge, SECOND);
document.addEventListener("visibilitychange", () => {
  requests = 0;
  if (document.visibilityState === "visible") loop();
});
timer = setTimeout(loop, SECOND); // the server has just written the page, and its first paint is not to wait
