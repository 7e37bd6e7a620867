(() => {
  // Charts have two dots a pixel at least: paper has more than most screens.
  if (devicePixelRatio < 2) Object.defineProperty(window, "devicePixelRatio", { value: 2 });
  const root = document.documentElement;
  const theme = document.createElement("button");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const redraw = () => dispatchEvent(new Event("colours"));
  const say = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.title = "Change the page's colours"; };
  theme.className = "theme"; theme.type = "button";
  theme.onclick = () => { root.dataset.theme = dark() ? "light" : "dark"; say(); redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { say(); redraw(); });
  let chosen;
  addEventListener("beforeprint", () => { chosen = root.dataset.theme; root.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => {
    if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
    redraw();
  });
  say();
  document.querySelector("header .wide").append(theme);
  for (const place of document.querySelectorAll(".copy")) {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = "Copy";
    button.onclick = async () => {
      const text = place.querySelector("pre");
      try { await navigator.clipboard.writeText(text.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(text); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    place.append(button);
  }
  for (const numbers of document.querySelectorAll(".numbers")) numbers.open = false;  // of charts that are drawn
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
})();
