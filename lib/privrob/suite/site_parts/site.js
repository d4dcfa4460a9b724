// What the theme's own script leaves out: it binds the first button of each kind only, and those stand in a hidden bar.
(function () {
  "use strict";
  for (const kind of ["primary", "secondary"]) {
    const all = Array.from(document.querySelectorAll(`.${kind}-toggle`));
    for (const button of all.slice(1)) button.addEventListener("click", () => all[0].click());
  }

  for (const arrow of document.querySelectorAll(".bd-links summary")) {
    const link = arrow.closest("li").querySelector("a");
    if (link) arrow.setAttribute("aria-label", `Pages below ${link.textContent.trim()}`);
  }

  // paper is white
  const root = document.documentElement;
  let theme;
  window.addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    if (theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = theme;
  });
})();
