"use strict";
// The page is complete without this script. The script highlights a topic in all places.

// An element is about a topic if it says so, or if it is a link to the topic, in text or picture.
const marked = [...document.querySelectorAll("[data-topic], a[href^='#topic-']")];
let lightedTopic = null; // the topic that is highlighted

function topicOf(element) {
  return element.dataset.topic ?? element.getAttribute("href").slice("#topic-".length);
}

// The map listens to this, too.
function light(topic) {
  if (topic === lightedTopic) return;
  lightedTopic = topic;
  for (const element of marked) {
    element.classList.toggle("active", topic !== null && topicOf(element) === topic);
  }
  document.dispatchEvent(new CustomEvent("topic", { detail: topic }));
}

function topicAt(target) {
  const around = "[data-topic], a[href^='#topic-']";
  const element = target instanceof Element ? target.closest(around) : null;
  return element === null ? null : topicOf(element);
}

document.addEventListener("pointerover", (event) => {
  if (!(event.target instanceof HTMLCanvasElement)) light(topicAt(event.target));
});
document.addEventListener("focusin", (event) => light(topicAt(event.target)));

// A link to a topic opens the topic and every <details> element around it.
function reveal() {
  const element = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = element; fold !== null; fold = fold.parentElement) {
    if (fold instanceof HTMLDetailsElement) fold.open = true;
  }
  if (element instanceof HTMLDetailsElement) {
    element.querySelector("summary").focus();
    element.scrollIntoView();
  }
}
window.addEventListener("hashchange", reveal);
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href^='#topic-']") : null;
  if (link !== null && link.getAttribute("href") === location.hash) reveal(); // no change of hash
});
reveal();

const topics = [...document.querySelectorAll("details.topic")];
for (const [id, open] of [["open-all", true], ["close-all", false]]) {
  const button = document.getElementById(id);
  button.closest("p").hidden = false;
  button.addEventListener("click", () => topics.forEach((topic) => { topic.open = open; }));
}

// For printing, open every <details> element but long tables of numbers.
let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open], .data)")];
  folded.forEach((fold) => { fold.open = true; });
});
window.addEventListener("afterprint", () => folded.forEach((fold) => { fold.open = false; }));
