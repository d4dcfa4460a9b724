// Narrows the table of items by document, verdict, notebook and words; the address always says what is shown.
(function () {
  "use strict";
  const form = document.getElementById("items-filter");
  const table = document.getElementById("items");
  if (!form || !table) return;
  const rows = Array.from(table.tBodies[0].rows).map((row) => ({
    row,
    doc: row.dataset.doc,
    verdict: row.dataset.verdict,
    notebook: row.dataset.nb,
    words: row.textContent.toLowerCase(),
  }));
  const boxes = Array.from(form.querySelectorAll("input[name=verdict]"));
  const count = document.getElementById("items-count");
  let notebook = "";

  function wanted() {
    return {
      doc: form.elements.doc.value,
      verdicts: new Set(boxes.filter((box) => box.checked).map((box) => box.value)),
      words: form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean),
    };
  }

  function show() {
    const want = wanted();
    const left = {};
    let shown = 0;
    for (const item of rows) {
      const rest =
        (!want.doc || item.doc === want.doc) &&
        (!notebook || item.notebook === notebook) &&
        want.words.every((word) => says(item.words, word));
      const all = rest && (!want.verdicts.size || want.verdicts.has(item.verdict));
      if (rest) left[item.verdict] = (left[item.verdict] || 0) + 1;
      item.row.hidden = !all;
      shown += all;
    }
    for (const box of boxes) {
      box.parentElement.querySelector(".count").textContent = left[box.value] || 0;
      box.parentElement.classList.toggle("none", !left[box.value]);
    }
    const of = shown === rows.length ? `All ${rows.length} items` : `${shown} of ${rows.length} items`;
    const none = shown ? "" : ". No item is all of this; Show all brings them back.";
    count.textContent = of + (notebook ? `, from ${notebook}` : "") + none;
  }

  function write() {
    const want = wanted();
    const parts = [];
    if (want.doc) parts.push("doc=" + want.doc);
    if (want.verdicts.size) parts.push("verdict=" + Array.from(want.verdicts).join("+"));
    if (notebook) parts.push("nb=" + notebook);
    if (form.elements.words.value.trim()) parts.push("q=" + encodeURIComponent(form.elements.words.value.trim()));
    history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search);
  }

  function plain(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text; // an address cut in two: take it as it stands
    }
  }

  // a formula is set, so that p_max stands as pmax on the page: found by both
  function says(words, word) {
    const set = word.replace(/[_^{}]/g, "");
    return words.includes(word) || (set !== "" && words.includes(set));
  }

  function read() {
    const hash = location.hash.slice(1);
    const asked = {};
    if (hash.includes("="))
      for (const part of hash.split("&")) {
        const at = part.indexOf("=");
        asked[part.slice(0, at)] = plain(part.slice(at + 1));
      }
    const verdicts = (asked.verdict || "").replace(/ (?=tried)/g, "-").split(/[+, ]/);
    form.elements.doc.value = asked.doc || "";
    if (form.elements.doc.selectedIndex < 0) form.elements.doc.value = "";
    form.elements.words.value = asked.q || "";
    notebook = asked.nb || "";
    for (const box of boxes) box.checked = verdicts.includes(box.value);
    show();
    const target = hash && !hash.includes("=") && document.getElementById(plain(hash));
    if (target) target.scrollIntoView({ block: "center" });
  }

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    show();
    write();
  });
  form.addEventListener("reset", () =>
    setTimeout(() => {
      notebook = "";
      show();
      write();
    }),
  );
  window.addEventListener("hashchange", read);
  read();
})();
